"""What a plan gives and nothing takes: a sentence for each, as none may be ignored in silence."""

from collections.abc import Iterator

from tpusim.graph import Attention, Graph, walk
from tpusim.models import Transformer
from tpusim.partition import Plan, stage_plan
from tpusim.partition.context import exchanged_by
from tpusim.partition.keys.context import ALL_TO_ALL, GATHER
from tpusim.partition.layout import Axes
from tpusim.partition.rules import idle_rules, resolve
from tpusim.steps import planned_graph


def unused(model: Transformer, plan: Plan) -> Iterator[str]:
    """A sentence for each key of `plan` that changes nothing for `model`, and why."""
    graph = planned_graph(model, plan)
    inner = stage_plan(plan)
    table = dict(resolve(inner, graph).table)
    yield from _of_dtypes(plan)
    yield from _of_stages(plan)
    if model.experts:
        yield from _of_experts(model, plan, table["act_expert"])
    elif plan.expert_exchange != ALL_TO_ALL:
        yield "plan.expert_exchange is not used, as the model has no experts"
    if plan.seed and not plan.expert_skew:
        yield "plan.seed is not used, as plan.expert_skew is 0"
    yield from _of_context(plan, graph, table["act_seq"])
    yield from idle_rules(inner, graph)


def _of_dtypes(plan: Plan) -> Iterator[str]:
    if plan.accumulator_dtype and plan.microbatches == 1:
        yield "plan.accumulator_dtype is not used, as there is one microbatch"
    for key in ("second_moment_dtype", "offload_optimizer"):
        if plan.optimizer == "sgd" and getattr(plan, key):
            yield f"plan.{key} is not used, as sgd keeps no moments"


def _of_stages(plan: Plan) -> Iterator[str]:
    if plan.pipeline:
        return
    given = {
        "schedule": plan.schedule,
        "virtual_stages": plan.virtual_stages > 1,
        "stage_layers": plan.stage_layers,
    }
    for key, value in given.items():
        if value:
            yield f"plan.{key} is not used, as the mesh has one stage"


def _of_experts(model: Transformer, plan: Plan, axes: Axes) -> Iterator[str]:
    most = model.experts / model.experts_per_token
    if plan.capacity_factor > most:
        yield (
            f"plan.capacity_factor is {plan.capacity_factor:g}, but at {most:g} each expert has a "
            "slot for every token, and no more are made"
        )
    if axes:
        return
    if plan.expert_exchange != ALL_TO_ALL:
        yield "plan.expert_exchange is not used, as each device has all experts"
    if plan.expert_skew:
        yield "plan.expert_skew is not used, as each device has all experts"


def _of_context(plan: Plan, graph: Graph, axes: Axes) -> Iterator[str]:
    ways = plan.context_exchange
    given = {ways} if isinstance(ways, str) else set(ways.values())
    if not axes and given != {GATHER}:
        yield "plan.context_exchange is not used, as no axis shards the sequence"
    if plan.context_balanced:
        return
    causal = any(isinstance(op, Attention) and op.causal for op, _ in walk(graph.ops))
    if not axes:
        yield "plan.context_balanced is not used, as no axis shards the sequence"
    elif not causal:
        yield "plan.context_balanced is not used, as the model has no causal attention kernel"
    elif exchanged_by(plan, axes, ALL_TO_ALL) == axes:
        yield "plan.context_balanced is not used, as kernels see whole sequences of fewer heads"
