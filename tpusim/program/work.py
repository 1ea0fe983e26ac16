"""What one operation asks of the machine: shapes and bytes, no seconds and no chip.

Each field is a number, or a NumPy array with one element a plan, so that the same cost formula
serves the engine (one plan) and the search (thousands at once). Bytes are those that pass between
HBM and the core, on one device; dimensions are local ones, after partitioning.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Number: TypeAlias = float | NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Matmul:
    """`batch` products of [m, k] by [k, n] on the systolic array.

    `epilogue_flops` are the vector operations of the element-wise group fused to it, and its bytes
    are already in `read_bytes` and `write_bytes`. `ragged` is the side that is as long as an expert
    has tokens, `m` or `k`, where the batch runs as one grouped kernel; it is then the mean.
    """

    batch: Number
    m: Number
    k: Number
    n: Number
    dtype: str
    read_bytes: Number
    write_bytes: Number
    epilogue_flops: Number = 0
    ragged: str = ""


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution: `positions` outputs of `taps` x `in_channels`, for each of `out_channels`."""

    batch: Number
    positions: Number
    taps: Number
    in_channels: Number
    out_channels: Number
    dtype: str
    read_bytes: Number
    write_bytes: Number
    epilogue_flops: Number = 0


@dataclass(frozen=True, slots=True)
class Attention:
    """A fused attention kernel over `batch` sequences and `heads` query heads of the device.

    `window` is the number of keys that a query may see (0: all of them). `value_dim` is the width
    of the values where it is not that of queries and keys, `head_dim` (0: it is). `late`: a causal
    kernel's queries are the last of the sequence, not an even share of early and late ones. The
    backward kernel computes the scores again; that costs time and is not counted in HFU.

    `share` is set where the kernel is one of several that make up the pass, as compiled programs
    have them: its part of the pass's products (3/7 for dQ alone). What prepares the pass is then
    not in it. 0: the pass as a whole.
    """

    batch: Number
    heads: Number
    q_len: Number
    kv_len: Number
    head_dim: Number
    dtype: str
    causal: bool
    window: int
    backward: bool
    read_bytes: Number
    write_bytes: Number
    value_dim: Number = 0
    late: bool = False
    share: Number = 0

    @property
    def value_width(self) -> Number:
        """The width of the values and of the result."""
        return self.value_dim if np.any(self.value_dim) else self.head_dim


@dataclass(frozen=True, slots=True)
class Vector:
    """An element-wise, normalisation, reduction, lookup or copy group on the vector unit."""

    read_bytes: Number
    write_bytes: Number
    flops: Number


@dataclass(frozen=True, slots=True)
class Estimate:
    """What the compiler itself believes: `cycles` of the device's clock, all that it waits for.

    `kind` is that of the work, for the breakdown: `matmul`, `convolution`, `attention` or `vector`.
    """

    kind: str
    cycles: Number
    read_bytes: Number
    write_bytes: Number


@dataclass(frozen=True, slots=True)
class Several:
    """One fused operation of several products, done one after the other."""

    parts: tuple[Matmul | Convolution, ...]

    @property
    def read_bytes(self) -> Number:
        """What its parts read."""
        return sum(part.read_bytes for part in self.parts)

    @property
    def write_bytes(self) -> Number:
        """What its parts write."""
        return sum(part.write_bytes for part in self.parts)


Work: TypeAlias = Matmul | Convolution | Attention | Vector | Estimate | Several


def kind_of(work: Work) -> str:
    """What a breakdown calls it: its class; of several products the first's, or what it says."""
    if isinstance(work, Estimate):
        return work.kind
    return type(work.parts[0] if isinstance(work, Several) else work).__name__.lower()
