"""Attention over a cache of keys and values: the kernel of a step of a server."""

from dataclasses import dataclass

from tpusim.base.phase import Phase
from tpusim.graph.tensor import Cotangents, DimSizes, MakeGradient, Tensor

CACHED = "cached"
"""The dimension of the cache: tokens that it holds."""

LATENT_HEADS = "latent_heads"
"""The dimension of heads, one, of latents: keys whose first part is the values."""

DECODES, CONTEXT, PREFILLS, PREFILL_KEYS, PREFILL_PAIRS, DRAFTED, ROUTED, EXPERT_BLOCK = LOAD = (
    "decodes",
    "context",
    "prefills",
    "prefill_keys",
    "prefill_pairs",
    "drafted",
    "routed",
    "expert_block",
)
"""Sizes of a graph that no tensor has: the load of a step (`server.StepLoad`), the tokens that a
sequence which decodes has in it (`drafted`, 1 without speculation), those that experts serve
(`routed`): all that do not only fill a bucket, and tokens of a device for which a fused kernel of
experts reads their weights once (`expert_block`); 0 for all."""


@dataclass(frozen=True, slots=True)
class CachedAttention:
    """Attention of the tokens of a step to the keys of their sequences, in pages of a cache.

    Its cost depends on the load of the step, which are sizes of the graph (`LOAD`).

    query: [batch, seq, heads, head_dim].
    key, value: of the step's tokens, [batch, seq, kv_heads, width], which are written to the cache.
    cached_key, cached_value: the cache, [cached, kv_heads, width]; no values where they are a part
        of the keys.
    output: result, [batch, seq, heads, width of the values].
    window: keys that a query sees; 0 for all.
    operations: that compute it, 1 for a kernel.
    page_seconds: to start the copies of pages, per key.
    """

    name: str
    query: Tensor
    key: Tensor
    value: Tensor
    cached_key: Tensor
    cached_value: Tensor | None
    output: Tensor
    window: int = 0
    operations: int = 1
    page_seconds: float = 0.0
    phase: Phase = Phase.FORWARD

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Queries, keys and values of the step, and the cache."""
        return (self.query, self.key, self.value, *self.caches)

    @property
    def caches(self) -> tuple[Tensor, ...]:
        """The cache of the keys, and that of the values if they have one."""
        if self.cached_value is None:
            return (self.cached_key,)
        return (self.cached_key, self.cached_value)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """The result."""
        return (self.output,)

    def flops(self, sizes: DimSizes) -> int:
        """Return the model FLOPs: 2 h (d + d_v) for each pair of a query and a key that it sees."""
        widths = sizes[self.query.dims[-1]] + sizes[self.value.dims[-1]]
        return 2 * sizes[self.query.dims[2]] * widths * round(seen_pairs(sizes, self.window))

    def transpose(self, cotangents: Cotangents, gradient: MakeGradient) -> tuple[()]:
        """Return no operations: a step of a server has no gradient."""
        return ()


def seen_keys_of(keys: float, sequences: float, window: int) -> float:
    """Return the keys that sequences with `keys` together see, at most `window` each."""
    return min(keys, window * sequences) if window else keys


def seen_pairs(sizes: DimSizes, window: int) -> float:
    """Return the pairs of a token of the step and a key that it sees."""
    sequences = sizes[DECODES] / sizes[DRAFTED]
    decoded = seen_keys_of(sizes[CONTEXT], sequences, window) * sizes[DRAFTED]
    return decoded + seen_keys_of(sizes[PREFILL_PAIRS], sizes[PREFILLS], window)
