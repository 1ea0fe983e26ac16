"""The keys of a pipeline: its axes, its schedule, and what each stage has of the model."""

from typing import TYPE_CHECKING

from tpusim.errors import PlanError
from tpusim.partition.keys.values import check_positive, is_list
from tpusim.partition.schedules import SCHEDULES as OF_SLOTS

if TYPE_CHECKING:
    from tpusim.partition.plan import Plan

STAGE_AXES = ("dcn_stage", "stage")
"""The axes of a pipeline's stages, the outer one first."""

CIRCULAR = "circular"
"""The schedule of one program that all stages run."""

SCHEDULES = (*OF_SLOTS, CIRCULAR)

_CHUNKED = (*(name for name, kind in OF_SLOTS.items() if kind.chunked), CIRCULAR)
"""The schedules of stages that have several parts of the model."""


def check(plan: "Plan") -> None:
    """Raise PlanError for layers of stages that are no list of whole numbers."""
    if not is_list(plan.stage_layers):
        raise PlanError(
            f"plan.stage_layers is {plan.stage_layers!r}; write a list of whole numbers, such as "
            "[16, 16, 15]"
        )
    for place, layers in enumerate(plan.stage_layers):
        check_positive(f"plan.stage_layers[{place}]", layers)


def check_together(plan: "Plan") -> None:
    """Raise PlanError for keys of a pipeline that contradict each other."""
    staged = any(axis in plan.mesh for axis in STAGE_AXES)
    given = {"schedule": plan.schedule, "stage_layers": plan.stage_layers}
    for key, value in given.items():
        if value and not staged:
            raise PlanError(
                f"plan.{key} is {value!r}, but no axis of the mesh has stages; write one, such as "
                "stage = 4"
            )
    _check_schedule(plan, plan.schedule or "1f1b")


def _check_schedule(plan: "Plan", schedule: str) -> None:
    if plan.virtual_stages > 1 and schedule not in _CHUNKED:
        raise PlanError(
            f"plan.virtual_stages is {plan.virtual_stages}, but the schedule {schedule} has one "
            f"part of the model a stage; write schedule = {' or '.join(map(repr, _CHUNKED))}, or "
            "leave it out"
        )
    if schedule == "interleaved" and plan.virtual_stages == 1:
        raise PlanError(
            "plan.schedule is 'interleaved', but plan.virtual_stages is 1, so there is nothing to "
            "interleave; write virtual_stages = 2 or more, or schedule = '1f1b'"
        )
    if plan.offload and schedule.startswith("zb"):
        raise PlanError(
            f"plan.offload is {list(plan.offload)}, but the schedule {schedule} keeps what weight "
            "gradients read in HBM until it makes them; leave it out, or write schedule = '1f1b'"
        )


def text(plan: "Plan") -> str:
    """The schedule, and what each stage has where that is more than one equal part."""
    if not plan.pipeline:
        return ""
    chunks = f" x {plan.virtual_stages}" if plan.virtual_stages > 1 else ""
    layers = f" (layers {', '.join(map(str, plan.stage_layers))})" if plan.stage_layers else ""
    return f", pipeline {plan.pipeline}{chunks}{layers}"
