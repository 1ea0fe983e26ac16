"""From a model and a serving plan to a step of a server: a forward pass over a cache."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from tpusim.base.errors import PlanError
from tpusim.frames import ForwardFrame, sizes_of
from tpusim.graph import (
    CACHED,
    CONTEXT,
    DECODES,
    DRAFTED,
    PREFILL_KEYS,
    PREFILL_PAIRS,
    PREFILLS,
    ROWS,
    CachedAttention,
    CacheForm,
    Graph,
    Tensor,
    cached_pass,
    walk,
    with_repeated_keys,
)
from tpusim.hardware import Slice
from tpusim.lowering import BodyChoices
from tpusim.models import Architecture, GraphChoices
from tpusim.partition import distinct_drops, partition_graph, resolve_rules
from tpusim.pipeline.planned_step import PlannedStep
from tpusim.plan import Rule, ServingPlan, Sharding
from tpusim.server.step_load import StepLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """The arrays of a step, which an engine compiles once for each of its buckets.

    tokens: of the step and of each rank, with those that only fill the bucket.
    rows: tokens of each rank whose logits are computed.
    pages: of the cache, of each rank.
    drafted: tokens that a sequence which decodes has in a step.
    """

    tokens: int
    rows: int
    pages: int = 1
    drafted: int = 1


def serving_step(
    model: Architecture, plan: ServingPlan, pod: Slice, load: StepLoad, shape: StepShape
) -> PlannedStep:
    """Return one step of a server.

    load: of all ranks together; an even share of it is computed on each.

    Raise PlanError for a plan that the model does not admit.
    """
    graph = serving_graph(model, plan, load, shape)
    sharding = _annotated(plan, graph)
    inner = plan.step_plan(plan.ranks, shape.tokens, sharding)
    rules = resolve_rules(sharding, graph)
    partitioned = partition_graph(graph, sharding, rules)
    choices = BodyChoices(sharding, inner.numerics, inner.compiler)
    sizes = sizes_of(graph, choices)
    return PlannedStep(
        inner,
        pod,
        graph,
        distinct_drops(partitioned.dropped),
        lambda place: (ForwardFrame(choices, sizes, place).program(graph, partitioned),),
    )


def serving_graph(
    model: Architecture, plan: ServingPlan, load: StepLoad, shape: StepShape
) -> Graph:
    """Return the graph of one step, before it is partitioned."""
    if not model.reads_text:
        raise PlanError(
            f"{model.name} reads no text, so it has no prompts and no cache; simulate its forward "
            "pass with a plan"
        )
    forward = _forward(model.served, plan.ranks, shape.tokens)
    form = CacheForm(
        tokens=shape.pages * plan.page_size * plan.ranks,
        rows=shape.rows,
        dtype=plan.kv_dtype,
        weight_dtype="" if plan.weight_dtype == "bf16" else plan.weight_dtype,
    )
    sizes = {
        DECODES: load.decodes,
        CONTEXT: load.context,
        PREFILLS: load.prefills,
        PREFILL_KEYS: load.prefill_keys,
        PREFILL_PAIRS: load.prefill_pairs,
        DRAFTED: shape.drafted,
    }
    return cached_pass(_with_heads_for_all(forward, plan), form, sizes)


@lru_cache(maxsize=32)
def _forward(model: Architecture, ranks: int, tokens: int) -> Graph:
    return model.graph(batch=ranks, seq_len=tokens, choices=GraphChoices(cached=True))


def _with_heads_for_all(graph: Graph, plan: ServingPlan) -> Graph:
    """Return a graph whose K/V heads are repeated where they are fewer than the devices."""
    heads = plan.mesh.get("tensor", 1)
    own = graph.sizes.get("kv_heads", heads)
    if plan.gather_weights or plan.attention == "tokens" or own >= heads:
        return graph
    return with_repeated_keys(graph, heads)


def _annotated(plan: ServingPlan, graph: Graph) -> Sharding:
    """Return the sharding of a plan, with the layouts that rules cannot say.

    Kernels and caches: tokens over the ranks and over `kernel_axes`. Where the tokens of a rank
    leave the axis of its ranks for a matmul over it, its results have none of it.
    """
    sharding = plan.sharding
    ranks, wide = plan.over("data", "attn_data"), plan.over("attn_data")
    annotate: dict[str, tuple[Rule, ...]] = {}
    for op, _ in walk(graph.ops):
        if isinstance(op, CachedAttention):
            annotate.update(_kernel_layouts(op, plan, ranks))
        elif wide:
            outs = (t for t in op.outputs if _divided_by_all(t))
            annotate.update((t.name, _without_ranks(t, plan, sharding)) for t in outs)
    rules = {f"act_{ROWS}": plan.token_axes[len(ranks) :], f"act_{CACHED}": ranks}
    return replace(sharding, annotate=annotate, rules={**sharding.rules, **rules})


def _kernel_layouts(
    op: CachedAttention, plan: ServingPlan, ranks: tuple[str, ...]
) -> Iterator[tuple[str, tuple[Rule, ...]]]:
    """Yield the layouts of the tensors of a kernel."""
    within = plan.kernel_axes
    heads: Rule = None if within else plan.over("tensor")
    for tensor in (op.query, op.key, op.value, op.output):
        yield tensor.name, (ranks, within, heads, None)
    for state in (op.cached_key, op.cached_value):
        yield state.name, ((*ranks, *within), heads, None)


_OF_ALL = ("mlp", "shared_mlp", "vocab", "expert_mlp", "expert")


def _divided_by_all(tensor: Tensor) -> bool:
    return any(dim in _OF_ALL for dim in tensor.dims) and tensor.dims[0] == "batch"


def _without_ranks(tensor: Tensor, plan: ServingPlan, sharding: Sharding) -> tuple[Rule, ...]:
    """Return the layout of a tensor whose tokens are gathered over `attn_data`."""
    layout: list[Rule] = [plan.over("data")]
    rules: dict[str, Any] = dict(sharding.rules)
    layout += [rules.get(f"act_{dim}", ()) for dim in tensor.dims[1:]]
    return tuple(layout)
