"""The work of one operation on a device: shapes and bytes, no seconds and no chip.

Each field is a number, or a NumPy array with one element a plan, so that the same cost formula
serves the engine (one plan) and the search (thousands at once). Bytes are those that pass between
HBM and the core, on one device; dimensions are local ones, after partitioning.
"""

from dataclasses import dataclass
from math import prod
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from tpusim.program.numeric import Number, largest, smallest


@dataclass(frozen=True, slots=True)
class MatmulWork:
    """`batch` matmuls of [m, k] by [k, n] on the systolic array.

    read_bytes, write_bytes: HBM traffic, including that of the fused element-wise group.
    epilogue_flops: vector operations of the element-wise group fused to it.
    ragged: side that is as long as an expert has tokens, `m` or `k`, if the batch runs as one
        grouped kernel; that side is then the mean over the experts.
    tiles: of m, k and n in a grouped kernel; empty for MaxText's defaults (`grouped_matmul`).
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
    tiles: tuple[Number, ...] = ()


@dataclass(frozen=True, slots=True)
class ConvolutionWork:
    """A convolution: `positions` outputs of `taps` x `in_channels`, for each of `out_channels`.

    Its two transposes multiply the same pairs, and have the sizes of the forward convolution. A
    transposed convolution is the input gradient of the one that it transposes.

    in_channels, out_channels: of all groups.
    gradient: `input` or `weight` for the gradient that is computed, or "" for the result.
    window, strides: taps and strides of each spatial dimension, the minor one last. Without them
        the taps are not packed, and the strides are 1.
    groups: feature groups, each with its own weights; `in_channels` for a depthwise convolution.
        Alike in all plans of an array.
    dilation: distance of the taps, in every dimension.
    tiled: True if the bytes count whole memory tiles, as those of compiled programs do.
    """

    batch: Number
    positions: Number
    taps: Number
    in_channels: Number
    out_channels: Number
    dtype: str
    read_bytes: Number
    write_bytes: Number
    epilogue_flops: Number = 0
    gradient: str = ""
    window: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    groups: Number = 1
    dilation: int = 1
    tiled: bool = False

    @property
    def inputs(self) -> Number:
        """Positions of the input: one for each position of the output and each of its strides."""
        return self.positions * prod(self.strides)

    @property
    def tensor_elements(self) -> dict[str, Number]:
        """Elements of the tensors, by the `gradient` that makes one of the other two."""
        return {
            "": self.batch * self.positions * self.out_channels,
            "input": self.batch * self.inputs * self.in_channels,
            "weight": self.taps * self.in_channels / self.groups * self.out_channels,
        }

    @property
    def flops(self) -> Number:
        """FLOPs of all taps, 2 per multiplication and addition."""
        each = self.positions * self.taps * self.in_channels / self.groups
        return 2 * self.batch * each * self.out_channels


ATTENTION_BLOCK = 512
"""Queries and keys of the block that a kernel visits at once, where nothing says otherwise: the
default of MaxText (`sa_block_q` and others), Levanter and AXLearn."""

SPLASH: Literal["splash"] = "splash"
TOKAMAX: Literal["tokamax"] = "tokamax"
FLASH: Literal["flash"] = "flash"
"""Libraries of attention kernels: JAX's (jax/experimental/pallas/ops/tpu/splash_attention),
Tokamax's of the same name, and JAX's older one (flash_attention) as torch_xla calls it."""


@dataclass(frozen=True, slots=True)
class AttentionWork:
    """A fused attention kernel over `batch` sequences and `heads` query heads of the device.

    The backward kernel computes the scores again; that costs time and is not counted in HFU.

    head_dim: width of queries and keys.
    window: keys that a query may see; 0 for all of them.
    value_dim: width of the values; 0 if it is `head_dim`.
    late: the queries of a causal kernel are the last of the sequence, not an even share of early
        and late ones.
    part: gradients that the kernel computes, `dq`, `dkv` or `all`, where it is one of the backward
        pass's, as in compiled programs; what prepares the pass is then not in it. "" for a whole
        pass.
    block: queries and keys that a step of the kernel's grid visits.
    fused: one kernel computes all three gradients, if `part` does not say.
    library: whose kernel it is, `splash`, `tokamax` or `flash`.
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
    part: str = ""
    block: tuple[int, int] = (ATTENTION_BLOCK, ATTENTION_BLOCK)
    fused: bool = False
    library: str = SPLASH

    @property
    def value_width(self) -> Number:
        """The width of the values and of the result."""
        return self.value_dim if np.any(self.value_dim) else self.head_dim


class AttentionLoad(NamedTuple):
    """The tokens and keys of a step of a server, on one device or over all of them.

    decodes: tokens of sequences that decode.
    context: keys that these sequences see, summed over the sequences.
    prefills: tokens of prompts.
    prefill_keys: keys of their sequences, summed over the sequences.
    prefill_pairs: pairs of such a token and a key that it sees.
    """

    decodes: Number
    context: Number
    prefills: Number
    prefill_keys: Number
    prefill_pairs: Number


@dataclass(frozen=True, slots=True)
class CachedAttentionWork:
    """A kernel of attention over pages of a cache, on one device.

    heads, kv_heads: of the device.
    head_dim, value_dim: width of queries and keys, and of values.
    ranks: devices among which the sequences are divided evenly.
    load: of all of them.
    drafted: tokens of a sequence that decodes, 1 without speculation.
    window: keys that a query sees; 0 for all.
    dtype: of the matmuls.
    key_bytes, query_bytes, output_bytes: of a cached key with its value, and of the queries and the
        result of a token, all heads of the device together.
    block: queries and keys that a step of the kernel visits at once, of prompts.
    operations: that compute it, 1 for a kernel.
    page_seconds: to start the copies of pages, per key.
    """

    heads: Number
    kv_heads: Number
    head_dim: Number
    value_dim: Number
    ranks: Number
    load: AttentionLoad
    drafted: int
    window: int
    dtype: str
    key_bytes: Number
    query_bytes: Number
    output_bytes: Number
    block: tuple[int, int]
    operations: int = 1
    page_seconds: float = 0.0

    @property
    def local(self) -> AttentionLoad:
        """The load of the device, of which a window leaves the keys that are seen."""
        decodes, context, prefills, keys, pairs = (each / self.ranks for each in self.load)
        if self.window:
            context = smallest(context, self.window * decodes / self.drafted)
            keys = smallest(keys, prefills + self.window)
            pairs = smallest(pairs, self.window * prefills)
        return AttentionLoad(decodes, context, prefills, keys, pairs)

    @property
    def read_bytes(self) -> Number:
        """Bytes of the keys and values that are seen, and of the queries."""
        local = self.local
        tokens = local.decodes + local.prefills
        return (local.context + local.prefill_keys) * self.key_bytes + tokens * self.query_bytes

    @property
    def write_bytes(self) -> Number:
        """Bytes of the result, and of the keys and values that enter the cache."""
        local = self.local
        return (local.decodes + local.prefills) * (self.key_bytes + self.output_bytes)


LINEAR_CHUNK = 64
"""Tokens of a chunk of linear attention: the default of SGLang-JAX's kernels of Gated DeltaNet
(kernels/gdn/gated_delta.py), Kimi Delta Attention (kernels/kda/kda.py) and Lightning Attention
(layers/attention/linear/lightning_backend.py)."""


@dataclass(frozen=True, slots=True)
class LinearAttentionWork:
    """A fused kernel of linear attention over `batch` sequences and `heads` heads of the device.

    key_dim: width of queries and keys.
    value_dim: width of the values.
    decay: who has a decay that follows from the token: each `head`, each `channel` of the keys, or
        "" for constants.
    delta: the delta rule replaces what the state has for a key.
    write_bytes: with those of a state that is written in place.
    """

    batch: Number
    heads: Number
    q_len: Number
    key_dim: Number
    value_dim: Number
    dtype: str
    decay: Literal["", "head", "channel"]
    delta: bool
    backward: bool
    read_bytes: Number
    write_bytes: Number


@dataclass(frozen=True, slots=True)
class CachedLinearWork:
    """A kernel of linear attention of a server's step, on one device.

    token: the kernel on one token of one sequence, its state not counted.
    state_bytes: of the states of a sequence, which a step reads and writes.
    ranks, load, drafted: see `CachedAttentionWork`.
    """

    token: LinearAttentionWork
    state_bytes: Number
    ranks: Number
    load: AttentionLoad
    drafted: int

    @property
    def dtype(self) -> str:
        """Of the matmuls."""
        return self.token.dtype

    @property
    def sequences(self) -> Number:
        """Sequences of the device that decode, and one of prompts if there is any."""
        return self.load.decodes / self.drafted / self.ranks + (1 if self.load.prefills else 0)

    @property
    def tokens(self) -> Number:
        """Tokens of the device."""
        return (self.load.decodes + self.load.prefills) / self.ranks

    @property
    def read_bytes(self) -> Number:
        """Bytes of the states and of the operands of all tokens."""
        return self.sequences * self.state_bytes + self.tokens * self.token.read_bytes

    @property
    def write_bytes(self) -> Number:
        """Bytes of the states and of the results of all tokens."""
        return self.sequences * self.state_bytes + self.tokens * self.token.write_bytes


@dataclass(frozen=True, slots=True)
class VectorWork:
    """An element-wise, normalisation, reduction, lookup or copy group on the vector unit.

    scattered: single elements that are added to its result by their index, one after another.
    added: pieces of 128 elements of rows that one core adds to others by their index, one after
        another.
    sent: rows that one core sends to other devices, each in a message of its own.
    waited: seconds in which it waits for other devices, while its messages are on their way.
    gathered: of the bytes read and written, those of rows that are picked by their index.
    crossing: memory tiles whose elements change row or lane (`compiler.work.relayout`).
    compiled: True if the operations are those of a compiled program, which widens and rounds bf16
        around each; a plan counts about half as many.
    """

    read_bytes: Number
    write_bytes: Number
    flops: Number
    scattered: Number = 0
    gathered: Number = 0
    crossing: Number = 0
    compiled: bool = False
    added: Number = 0
    sent: Number = 0
    waited: Number = 0


@dataclass(frozen=True, slots=True)
class EstimatedWork:
    """The compiler's own estimate.

    kind: kind of work, for the breakdown: `matmul`, `convolution`, `attention` or `vector`.
    cycles: cycles of the device's clock, all stalls included.
    """

    kind: str
    cycles: Number
    read_bytes: Number
    write_bytes: Number


@dataclass(frozen=True, slots=True)
class CombinedWork:
    """A fused operation of several matmuls, one after the other."""

    parts: tuple[MatmulWork | ConvolutionWork, ...]

    @property
    def read_bytes(self) -> Number:
        """Bytes that the parts read."""
        return sum(part.read_bytes for part in self.parts)

    @property
    def write_bytes(self) -> Number:
        """Bytes that the parts write."""
        return sum(part.write_bytes for part in self.parts)


Work: TypeAlias = (
    MatmulWork
    | ConvolutionWork
    | AttentionWork
    | CachedAttentionWork
    | CachedLinearWork
    | LinearAttentionWork
    | VectorWork
    | EstimatedWork
    | CombinedWork
)


def kind_of(work: Work) -> str:
    """Return the kind of work for a breakdown; of several matmuls, that of the first."""
    if isinstance(work, EstimatedWork):
        return work.kind
    if isinstance(work, CachedAttentionWork | CachedLinearWork | LinearAttentionWork):
        return "attention"
    first = work.parts[0] if isinstance(work, CombinedWork) else work
    return type(first).__name__.removesuffix("Work").lower()


def seen_keys(work: AttentionWork) -> Number:
    """Return the keys that a query of an attention kernel sees, on average.

    All: `kv`. Causal: `kv / 2`, or `kv - q / 2` if the q queries are the last of the sequence. A
    causal window of w: `w - d^2 / (2 n)`, since the first d of n queries see fewer: w of all kv; of
    the last q, those whose window reaches back beyond the first key. Any other window: w.
    """
    queries = work.q_len if work.late else work.kv_len
    if not work.window:
        return work.kv_len - queries / 2 if work.causal else work.kv_len
    window = smallest(work.kv_len, work.window)
    short = largest(window - work.kv_len + queries, 0) if work.causal else 0.0 * window
    return window - short * short / (2 * queries)
