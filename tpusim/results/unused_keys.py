"""Keys of a plan that have no effect: a sentence for each, as none is ignored silently."""

from collections.abc import Iterator, Mapping

from tpusim.base.plain_text import plain
from tpusim.graph import Attention, Graph, walk
from tpusim.models import Architecture
from tpusim.partition import (
    exchanged_by,
    idle_rules,
    layouts,
    update_layouts,
)
from tpusim.pipeline.planned_step import checked_rules, planned_graph
from tpusim.plan import (
    ALL_TO_ALL,
    DEFAULT_TILES,
    GATHER,
    Axes,
    Context,
    Experts,
    Numerics,
    Pipeline,
    Plan,
    Training,
    stage_plan,
)


def unused_keys(model: Architecture, plan: Plan) -> Iterator[str]:
    """Yield a sentence for each key of `plan` that has no effect for `model`, with the reason."""
    graph = planned_graph(model, plan)
    inner = stage_plan(plan)
    rules = checked_rules(inner, graph)
    table = dict(rules.table)
    if plan.seq_len and not model.reads_text:
        yield f"plan.seq_len is not used, as {plain(model.name)} reads no text"
    yield from _of_gradients(plan.training, plan.numerics)
    found = layouts(graph, inner.sharding, rules)
    axes = tuple(plan.optimizer.axes)
    if axes and not update_layouts(graph, inner.sharding, axes, found):
        yield "plan.weight_update_axes is not used, as it divides no weight further"
    if not plan.active_schedule:
        yield from _of_no_stages(plan.pipeline)
    if "expert" in graph.sizes:
        yield from _of_experts(plan.experts, graph.sizes, table["act_expert"])
    else:
        yield from _of_no_experts(plan.experts)
    if plan.experts.seed and not plan.experts.skew:
        yield "plan.seed is not used, as plan.expert_skew is 0"
    yield from _of_context(plan.context, graph, table["act_seq"])
    yield from idle_rules(inner.sharding, graph, rules)


def _of_gradients(training: Training, numerics: Numerics) -> Iterator[str]:
    if numerics.accumulator and training.microbatches == 1:
        yield "plan.accumulator_dtype is not used, as there is one microbatch"
    if training.gradient_reduction == "per-step" and training.microbatches == 1:
        yield "plan.gradient_reduction is not used, as there is one microbatch"
    moments = {
        "second_moment_dtype": numerics.second_moment,
        "offload_optimizer": training.optimizer.offload,
    }
    for key, value in moments.items():
        if training.optimizer.name == "sgd" and value:
            yield f"plan.{key} is not used, as sgd keeps no moments"


def _of_no_stages(pipeline: Pipeline) -> Iterator[str]:
    given = {
        "schedule": pipeline.schedule,
        "virtual_stages": pipeline.virtual_stages > 1,
        "stage_layers": pipeline.stage_layers,
    }
    for key, value in given.items():
        if value:
            yield f"plan.{key} is not used, as the mesh has one stage"


def _of_experts(experts: Experts, sizes: Mapping[str, int], axes: Axes) -> Iterator[str]:
    most = sizes["expert"] / sizes["choice"]
    if experts.capacity_factor > most:
        yield (
            f"plan.capacity_factor is {experts.capacity_factor:g}, but at {most:g} each "
            "expert has a slot for every token, and no more are made"
        )
    if experts.capacity_factor and experts.tiles != DEFAULT_TILES:
        yield "plan.expert_tiles is not used, as experts with a capacity are batched matmuls"
    if axes:
        return
    if experts.exchange != ALL_TO_ALL:
        yield "plan.expert_exchange is not used, as each device has all experts"
    if experts.skew:
        yield "plan.expert_skew is not used, as each device has all experts"


def _of_no_experts(experts: Experts) -> Iterator[str]:
    if experts.exchange != ALL_TO_ALL:
        yield "plan.expert_exchange is not used, as the model has no experts"
    if experts.tiles != DEFAULT_TILES:
        yield "plan.expert_tiles is not used, as the model has no experts"


def _of_context(context: Context, graph: Graph, axes: Axes) -> Iterator[str]:
    exchange = context.exchange
    given = {exchange} if isinstance(exchange, str) else set(exchange.values())
    if not axes and given != {GATHER}:
        yield "plan.context_exchange is not used, as no axis shards the sequence"
    if context.balanced:
        return
    causal = any(isinstance(op, Attention) and op.causal for op, _ in walk(graph.ops))
    if not axes:
        yield "plan.context_balanced is not used, as no axis shards the sequence"
    elif not causal:
        yield "plan.context_balanced is not used, as the model has no causal attention kernel"
    elif exchanged_by(context, axes, ALL_TO_ALL) == axes:
        yield "plan.context_balanced is not used, as kernels see whole sequences of fewer heads"
