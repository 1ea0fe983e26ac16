"""From a model and a serving plan to a step of a server: a forward pass over a cache."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from tpusim.frames import ForwardFrame, sizes_of
from tpusim.graph import (
    CACHED,
    CONTEXT,
    DECODES,
    DRAFTED,
    EXPERT_BLOCK,
    LATENT_HEADS,
    NEXT_TOKEN,
    PREFILL_KEYS,
    PREFILL_PAIRS,
    PREFILLS,
    ROUTED,
    ROWS,
    CachedAttention,
    CacheForm,
    Gather,
    Graph,
    Op,
    Tensor,
    TensorRole,
    cached_pass,
    plain_dim,
    walk,
    with_repeated_keys,
)
from tpusim.hardware import Slice
from tpusim.lowering import BodyChoices
from tpusim.models import Architecture, ExpertRouting, GraphChoices
from tpusim.partition import (
    Layout,
    ShardingRules,
    distinct_drops,
    partition_graph,
    resolve_rules,
)
from tpusim.pipeline.planned_step import PlannedStep
from tpusim.plan import Axes, ServingPlan, Sharding
from tpusim.plan.serving_plan import ATTENTION_DATA, DATA, FUSED_BLOCK, FUSED_BLOCKS, TENSOR
from tpusim.server.step_load import StepLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """The arrays of a step, which an engine compiles once for each of its buckets.

    tokens: of the step and of each rank, with those that only fill the bucket.
    rows: tokens of each rank whose logits are computed.
    pages: of the cache, of each rank.
    drafted: tokens that a sequence which decodes has in a step.
    routed: tokens of all ranks that experts serve; 0 for all, those that fill the bucket included.
    """

    tokens: int
    rows: int
    pages: int = 1
    drafted: int = 1
    routed: int = 0


def serving_step(
    model: Architecture, plan: ServingPlan, pod: Slice, load: StepLoad, shape: StepShape
) -> PlannedStep:
    """Return one step of a server.

    load: of all ranks together; an even share of it is computed on each.

    Raise PlanError for a plan that the model does not admit.
    """
    graph = serving_graph(model, plan, load, shape, pod.chip.generation)
    sharding, rules = serving_rules(plan, graph)
    inner = plan.step_plan(plan.ranks, shape.tokens, sharding, pod.chip.generation)
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


def serving_rules(plan: ServingPlan, graph: Graph) -> tuple[Sharding, ShardingRules]:
    """Return the sharding of a step of a server, and the rules that give its tensors layouts."""
    sharding = _with_rules_of_cache(plan, graph)
    found = resolve_rules(sharding, graph)
    return sharding, replace(found, fixed=tuple(_fixed_layouts(plan, graph, found)))


def serving_graph(
    model: Architecture, plan: ServingPlan, load: StepLoad, shape: StepShape, chip: str = ""
) -> Graph:
    """Return the graph of one step, before it is partitioned.

    chip: generation of the chips.

    The tokens of a model that reads no text are its examples: images, or one step of a diffusion
    model for each.
    """
    fused = plan.fused_experts
    forward = _forward(model, plan.ranks, shape.tokens, fused)
    form = CacheForm(
        tokens=shape.pages * plan.page_size * plan.ranks,
        rows=shape.rows,
        dtype=plan.kv_dtype,
        fused=plan.kernel == "paged",
        page_seconds=plan.page_s / plan.page_size,
        weight_dtype="" if plan.weight_dtype == "bf16" else plan.weight_dtype,
        fused_experts=fused,
        expert_seconds=plan.expert_s,
        on_chip=plan.on_chip,
    )
    sizes = {
        DECODES: load.decodes,
        CONTEXT: load.context,
        PREFILLS: load.prefills,
        PREFILL_KEYS: load.prefill_keys,
        PREFILL_PAIRS: load.prefill_pairs,
        DRAFTED: shape.drafted,
        ROUTED: shape.routed or shape.tokens * plan.ranks,
        EXPERT_BLOCK: FUSED_BLOCKS.get(chip, FUSED_BLOCK) if fused else 0,
    }
    return cached_pass(_with_heads_for_all(forward, plan), form, sizes)


@lru_cache(maxsize=32)
def _forward(model: Architecture, ranks: int, tokens: int, fused: bool) -> Graph:
    model = model.served
    routing = ExpertRouting(exchange="all-to-all" if fused else "gather")
    choices = GraphChoices(cached=True, routing=routing)
    if not model.reads_text:
        return model.graph(batch=ranks * tokens, choices=choices)
    return model.graph(batch=ranks, seq_len=tokens, choices=choices)


def _with_heads_for_all(graph: Graph, plan: ServingPlan) -> Graph:
    """Return a graph whose K/V heads are repeated where they are fewer than the devices."""
    heads = plan.mesh.get("tensor", 1)
    own = graph.sizes.get("kv_heads", heads)
    if plan.gather_weights or plan.attention == "tokens" or own >= heads:
        return graph
    return with_repeated_keys(graph, heads)


def _with_rules_of_cache(plan: ServingPlan, graph: Graph) -> Sharding:
    """Return the sharding of a plan with the rules of dimensions that only a cache has.

    Kernels gather the rows of a device's own experts, of which an even share is in its buffers.
    """
    ranks = plan.over("data", "attn_data")
    own = {f"act_{ROWS}": plan.token_axes[len(ranks) :], f"act_{CACHED}": ranks}
    sharding = plan.sharding
    experts = replace(sharding.experts, buffer=_buffer_of_experts(graph))
    return replace(sharding, rules={**sharding.rules, **own}, experts=experts)


def _buffer_of_experts(graph: Graph) -> float:
    """Return the rows of a device's buffer over its slots; 0 for a model without experts."""
    sizes = graph.sizes
    if "expert" not in sizes:
        return 0.0
    filled = sizes["seq"] * sizes["choice"] / (sizes["expert"] * sizes["slot"])
    return max(1.0, filled)


def _fixed_layouts(
    plan: ServingPlan, graph: Graph, rules: ShardingRules
) -> Iterator[tuple[str, Layout]]:
    """Yield the layouts of tensors that rules by dimension cannot give.

    Kernels and caches: tokens over the ranks and over `kernel_axes`. Tensors that are divided over
    the axis of data-parallel attention: all tokens of its ranks.
    """
    within = plan.kernel_axes(graph.sizes.get("seq", 1))
    for op, _ in walk(graph.ops):
        if isinstance(op, CachedAttention):
            yield from _kernel_layouts(op, plan, within)
            continue
        if isinstance(op, Gather) and op.table.role is TensorRole.PARAM:
            yield op.table.name, (plan.over(TENSOR), rules.layout(op.table)[1])
        if plan.fused_experts and (routers := [*_routers(op)]):
            yield from ((each.name, _own_tokens(each, plan)) for each in routers)
            continue
        routed = any(map(_of_router, op.outputs)) and bool(plan.over(ATTENTION_DATA))
        for tensor in (*op.inputs, *op.outputs):
            if _of_router(tensor) or (routed and tensor.role is TensorRole.ACTIVATION):
                yield tensor.name, _whole_experts(tensor, plan)
            elif plan.over(ATTENTION_DATA) and _of_all(tensor):
                yield tensor.name, _gathered(tensor, plan, rules)


def _kernel_layouts(
    op: CachedAttention, plan: ServingPlan, within: Axes
) -> Iterator[tuple[str, Layout]]:
    """Yield the layouts of the tensors of a kernel."""
    ranks = plan.over(DATA, ATTENTION_DATA)
    heads = () if within or plan.gather_weights else plan.over(TENSOR)
    own = () if LATENT_HEADS in op.key.dims else heads
    for tensor in (op.query, op.output):
        yield tensor.name, (ranks, within, heads, ())
    for tensor in (op.key, op.value):
        yield tensor.name, (ranks, within, own, ())
    for state in op.caches:
        yield state.name, ((*ranks, *within), own, ())


def _of_router(tensor: Tensor) -> bool:
    """Return True for the router's matrix and for its product."""
    return tensor.short in ("router", "router_logits", "router_bias")


def _routers(op: Op) -> Iterator[Tensor]:
    """Yield the tensors of an operation that have a place for each expert, or for each choice."""
    for tensor in (*op.inputs, *op.outputs):
        if _of_router(tensor) or tensor.short == "gates":
            yield tensor


def _own_tokens(tensor: Tensor, plan: ServingPlan) -> Layout:
    """Return the layout of a tensor of a rank's tokens, which all its devices have."""
    ranks = plan.over(DATA, ATTENTION_DATA)
    return tuple(ranks if dim == "batch" else () for dim in tensor.dims)


def _whole_experts(tensor: Tensor, plan: ServingPlan) -> Layout:
    """Return the layout of a tensor of all experts, which each device has for all tokens."""
    return tuple(plan.over(DATA) if dim == "batch" else () for dim in tensor.dims)


_DIVIDED_BY_ALL = ("mlp", "shared_mlp", "vocab", "expert_mlp", "expert", "choice")


def _of_all(tensor: Tensor) -> bool:
    """Return True for what is computed of all tokens of the ranks of `attn_data`."""
    wide = any(plain_dim(dim) in _DIVIDED_BY_ALL for dim in tensor.dims)
    return (wide or tensor.short == NEXT_TOKEN) and tensor.dims[0] == "batch"


def _gathered(tensor: Tensor, plan: ServingPlan, rules: ShardingRules) -> Layout:
    """Return the layout of a tensor with all tokens of the ranks of `attn_data`."""
    table = dict(rules.table)
    taken: set[str] = set(plan.over(DATA))
    layout = [plan.over(DATA)]
    for dim in tensor.dims[1:]:
        axes = tuple(a for a in table.get(f"act_{dim}", ()) if a not in taken)
        taken.update(axes)
        layout.append(axes)
    return tuple(layout)
