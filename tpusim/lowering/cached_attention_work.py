"""The work of attention and linear attention over what is cached, on one device."""

from collections.abc import Mapping

from tpusim import graph, program
from tpusim.graph import CONTEXT, DECODES, DRAFTED, PREFILL_KEYS, PREFILL_PAIRS, PREFILLS
from tpusim.partition import Sizes
from tpusim.plan import Axes
from tpusim.program import LinearAttentionWork

_LOAD = (DECODES, CONTEXT, PREFILLS, PREFILL_KEYS, PREFILL_PAIRS)


def cached_attention_work(
    op: graph.CachedAttention, split: Mapping[str, Axes], sizes: Sizes
) -> program.CachedAttentionWork:
    """Return the work of the sequences of one device: an even share of the step's load."""
    tokens_over = (axis for dim in op.query.dims[:2] for axis in split.get(dim, ()))
    heads, kv_heads, width, value_width = (
        sizes.extent(dim, split.get(dim, ()))
        for dim in (op.query.dims[2], *op.key.dims[2:], op.value.dims[-1])
    )
    item = sizes.itemsize(op.query.dtype)
    cached = width if op.cached_value is None else width + value_width
    return program.CachedAttentionWork(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=width,
        value_dim=value_width,
        ranks=sizes.group(tuple(tokens_over)),
        load=_load(sizes),
        drafted=sizes.dims[DRAFTED],
        window=op.window,
        dtype=sizes.compute_dtype,
        key_bytes=kv_heads * cached * sizes.itemsize(op.cached_key.dtype),
        query_bytes=heads * width * item,
        output_bytes=heads * value_width * item,
        operations=op.operations,
        page_seconds=op.page_seconds,
        block=sizes.kernel.block_of(backward=False),
    )


def cached_linear_work(
    op: graph.LinearAttention, split: Mapping[str, Axes], sizes: Sizes, token: LinearAttentionWork
) -> program.CachedLinearWork:
    """Return the work of linear attention in a step of a server.

    token: the kernel on one token of one sequence, its state not counted.
    """
    assert op.state is not None
    batch, sequence, heads, value_width = op.value.dims
    over = (axis for dim in (batch, sequence) for axis in split.get(dim, ()))
    elements = sizes.product((heads, op.key.dims[-1], value_width), split)
    return program.CachedLinearWork(
        token=token,
        state_bytes=elements * sizes.itemsize(op.state.dtype),
        ranks=sizes.group(tuple(over)),
        load=_load(sizes),
        drafted=sizes.dims[DRAFTED],
    )


def _load(sizes: Sizes) -> program.AttentionLoad:
    return program.AttentionLoad(*(sizes.dims[name] for name in _LOAD))
