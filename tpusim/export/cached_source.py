"""Attention over a cache as a JAX expression, and the tables of the cache's arrays."""

from collections.abc import Iterator
from math import prod

from tpusim.export.names import DTYPES, call, constant_name, quoted, spec, unsaid, weight_name
from tpusim.export.served_arrays import ServedArrays
from tpusim.export.step_context import StepContext
from tpusim.export.weight_source import WeightSource
from tpusim.graph import CachedAttention, Op, Scan, Tensor

CACHE, CACHE_SPECS = "CACHE", "CACHE_SPECS"
"""The tables: shape with dtype, and sharding, of each array of the cache."""

KERNEL_WIDTH = 128
"""The kernel over pages takes heads of a multiple of this width."""


def keeps_cache(op: Op) -> bool:
    """Return True for layers that read and write a cache."""
    return isinstance(op, Scan) and any(isinstance(one, CachedAttention) for one in op.body)


def cached_attention(op: CachedAttention, given: list[str], context: StepContext) -> str:
    """Return the call that writes keys and values to the cache, and attends.

    given: expressions of queries, keys and values.

    Raise PlanError for sequences that devices cannot divide, and for heads that the kernel over
    pages does not take.
    """
    served = _served(context)
    query, key = (context.layouts[tensor.name][:3] for tensor in (op.query, op.key))
    parts = prod(context.plan.mesh[axis] for axis in query[1])
    if served.sequences % parts:
        raise unsaid(op.name, f"attention with {served.sequences} sequences over {parts} devices")
    names = [quoted(name) for name, _ in _arrays(op, context)]
    ending = "," if len(names) == 1 else ""
    caches = names[0] if served.paged else f"({', '.join(names)}{ending})"
    pages = ["kv_pages"] if served.paged else []
    options = [f"window={op.window}"] if op.window else []
    block = context.plan.attention_kernel.block
    options += [f"block={tuple(block)}"] if served.paged and block else []
    function = "paged_attention" if served.paged else "cached_attention"
    specs = (spec(query), spec(key))
    where = (caches, "kv_lengths", *pages)
    return call(function, *given, "kv_cache", *where, *specs, *options)


def cache_source(op: CachedAttention, group: str, context: StepContext) -> Iterator[WeightSource]:
    """Yield the arrays of a cache as source.

    group: the scan whose iterations have one each.
    """
    if not group:
        raise unsaid(op.name, "attention over a cache in a layer that is not scanned")
    served = _served(context)
    for name, state in _arrays(op, context):
        rows, heads, _ = context.layouts[state.name]
        ranks = context.layouts[op.key.name][0]
        heads_of, width = map(constant_name, state.dims[1:])
        if served.paged:
            sizes = ("ALL_PAGES", "PAGE_SIZE", f"2 * {heads_of}", width)
        else:
            sizes = ("BATCH * SEQUENCES", "KEYS", heads_of, width)
        assert rows[: len(ranks)] == ranks
        entries = {
            CACHE: f"(({', '.join(sizes)}), {DTYPES[state.dtype]})",
            CACHE_SPECS: spec((rows, (), heads)),
        }
        yield WeightSource(group, name, state.name, entries)


def _arrays(op: CachedAttention, context: StepContext) -> Iterator[tuple[str, Tensor]]:
    """Yield the name of each array of the cache, with the state that gives its dtype and layout."""
    if not _served(context).paged:
        yield from ((weight_name(state), state) for state in op.caches)
        return
    if op.cached_value is None or op.key.dims[2:] != op.value.dims[2:]:
        raise unsaid(op.name, 'a kernel over pages of latents (write kernel = "dot")')
    width = context.graph.sizes[op.key.dims[-1]]
    if width % KERNEL_WIDTH:
        raise unsaid(
            op.name,
            f"a kernel over pages with heads {width} wide, which it takes in multiples of "
            f'{KERNEL_WIDTH} (write kernel = "dot")',
        )
    yield weight_name(op.cached_key).replace("keys", "pages"), op.cached_key


def _served(context: StepContext) -> ServedArrays:
    assert context.served is not None
    return context.served
