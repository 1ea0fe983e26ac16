"""Row sums of attention kernels that are computed again, which a kernel writes for each lane.

JAX's splash kernel returns the logarithm of each row's sum as f32[heads, seq, 128], all lanes
alike, of which one is sliced where the backward kernel reads it. A kernel of a recomputation runs
before the backward pass of what follows it, so the whole of it is held until then
(`splash_mha_fwd_residuals` of f32[2,40,4096,128] beside an MLP, v6e 4x4, and of f32[64,5,2048,128],
v4 2x4x4; libtpu 0.0.42.1).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tpusim.base.phase import Phase
from tpusim.graph import Attention
from tpusim.lowering.body_entries import Entry, RingAttention, on_core
from tpusim.lowering.op_work import Buffers
from tpusim.partition import DTYPE_BYTES, ComputeNode, LocalShape, Sizes
from tpusim.program import LANES, Alloc


class HeldBeside(NamedTuple):
    """A buffer that no entry names, and the places of those with which it begins and ends."""

    begin: int
    end: int
    alloc: Alloc


def row_sums(entries: Sequence[Entry], buffers: Buffers, sizes: Sizes) -> Iterator[HeldBeside]:
    """Yield the row sums of the kernels in a body that are computed again for backward kernels."""
    kernels = [
        (place, entry, op) for place, entry in enumerate(entries) if (op := kernel_of(entry))
    ]
    readers = {op.output.name: place for place, _, op in reversed(kernels) if op.backward}
    for place, entry, op in kernels:
        if op.backward or entry.phase is not Phase.RECOMPUTE or op.output.name not in readers:
            continue
        between = (i for i in range(place, readers[op.output.name]) if on_core(entries[i]))
        (key,) = entry.writes
        buffer = buffers[key]
        rows = sizes.elements(LocalShape(buffer.local.dims[:-1], buffer.local.layout[:-1]))
        nbytes = rows * LANES * DTYPE_BYTES["f32"]
        yield HeldBeside(
            place, max(between, default=place), Alloc(f"{key}/row sums", nbytes, buffer.category)
        )


def kernel_of(entry: Entry) -> Attention | None:
    """Return the attention kernel that an entry runs, if it runs one."""
    if isinstance(entry, RingAttention):
        entry = entry.compute
    op = entry.op if isinstance(entry, ComputeNode) else None
    return op if isinstance(op, Attention) else None
