"""The layers of each stage of a pipeline, and the plan of a stage by itself."""

from collections.abc import Sequence
from itertools import accumulate

from tpusim.base.errors import PlanError
from tpusim.plan.axes import axes_of
from tpusim.plan.default_rules import DEFAULT_RULES
from tpusim.plan.pipeline import CIRCULAR, STAGE_AXES
from tpusim.plan.plan import Plan


def stage_plan(plan: Plan) -> Plan:
    """Return the plan of one stage, whose mesh has the other axes: stages shard nothing inside."""
    return plan.replace(mesh={a: 1 if a in STAGE_AXES else n for a, n in plan.mesh.items()})


def inner_plan(plan: Plan) -> Plan:
    """Return the plan of a stage, or the plan itself where there is no pipeline."""
    return stage_plan(plan) if plan.active_schedule else plan


def edge_plan(plan: Plan) -> Plan:
    """Return the plan of a circular pipeline before and after its loops.

    All microbatches are present at once, and the stages share them as one more axis of the batch
    (MaxText's `activation_embed_and_logits_batch`, base.yml).
    """
    batch = axes_of(plan.rules.get("act_batch", DEFAULT_RULES["act_batch"]))
    axes = tuple(axis for axis in dict.fromkeys((*batch, *STAGE_AXES)) if axis in plan.mesh)
    return plan.replace(microbatches=1, rules={**plan.rules, "act_batch": axes})


def part_bounds(plan: Plan, layers: int, model: str) -> tuple[int, ...]:
    """Return the first layer of each part of the model, in its order, and the number of layers.

    Part c x stages + s is chunk c of stage s. Raise PlanError if the layers cannot be shared out.
    """
    parts = plan.stages * plan.pipeline.virtual_stages
    given = tuple(plan.pipeline.stage_layers)
    _check_axes(plan)
    _check_parts(plan, parts, layers, model)
    if given:
        _check_given(given, parts, layers, plan)
    elif layers % parts:
        near = [layers // parts + (part < layers % parts) for part in range(parts)]
        raise PlanError(
            f"{model} has {layers} layers, which {_parts(plan)} cannot share equally; "
            + (
                f"write numbers whose product divides {layers}, as one program runs all stages, or "
                "another schedule with stage_layers"
                if plan.active_schedule == CIRCULAR
                else f"write how many each has, such as stage_layers = {near}"
            )
        )
    return (0, *accumulate(given or [layers // parts] * parts))


def _check_axes(plan: Plan) -> None:
    """Raise PlanError for a rule or an annotation over an axis of the stages."""
    rules = {f"rules.{key}": axes_of(rule) for key, rule in plan.rules.items()}
    noted = {
        f"annotate.{name}": tuple(axis for rule in given for axis in axes_of(rule))
        for name, given in plan.annotate.items()
    }
    for where, axes in (rules | noted).items():
        for axis in axes:
            if axis in STAGE_AXES:
                raise PlanError(
                    f"plan.{where} shards over {axis!r}, which cuts the model between its layers "
                    "and shards nothing inside of a stage; write another axis, or leave it out"
                )


def _check_parts(plan: Plan, parts: int, layers: int, model: str) -> None:
    if parts > layers:
        chunks = layers // plan.stages
        most = f"virtual_stages = {chunks} at most" if chunks else f"at most {layers} stages"
        raise PlanError(
            f"the mesh has {_parts(plan)}, but {model} has {layers} layers, and each needs one; "
            f"write {most}"
        )


def _check_given(given: Sequence[int], parts: int, layers: int, plan: Plan) -> None:
    if len(given) != parts:
        raise PlanError(
            f"plan.stage_layers has {len(given)} number{'s' * (len(given) > 1)}, but there are "
            f"{_parts(plan)}; write one for each"
        )
    if sum(given) != layers:
        raise PlanError(
            f"plan.stage_layers adds up to {sum(given)} layers, but the model has {layers}; write "
            f"numbers that add up to {layers}"
        )
    rounds = [given[start : start + plan.stages] for start in range(0, parts, plan.stages)]
    if plan.active_schedule == CIRCULAR and any(len(set(each)) > 1 for each in rounds):
        raise PlanError(
            f"plan.stage_layers is {list(given)}, but one program runs all stages of a circular "
            f"pipeline; write equal numbers for the {plan.stages} parts of a round, or another "
            "schedule"
        )


def _parts(plan: Plan) -> str:
    each = (
        f" x {plan.pipeline.virtual_stages} virtual stages"
        if plan.pipeline.virtual_stages > 1
        else ""
    )
    return f"{plan.stages} stages{each}"
