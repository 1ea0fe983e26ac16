"""The pipeline of a plan: its axes, its schedule, and each stage's part of the model."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal, TypeAlias

from tpusim.base.errors import PlanError
from tpusim.base.shown_value import shown
from tpusim.base.value_checks import check_positive, check_words, is_list
from tpusim.plan.pipeline_schedules import SLOT_SCHEDULES

STAGE_AXES = ("dcn_stage", "stage")
"""The axes of a pipeline's stages, the outer one first."""

CIRCULAR = "circular"
"""The schedule of one program that all stages run."""

ScheduleName: TypeAlias = Literal["", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "circular"]
"""Those of `SLOT_SCHEDULES`, `CIRCULAR`, and none."""

_CHUNKED = (*(name for name, kind in SLOT_SCHEDULES.items() if kind.chunked), CIRCULAR)
"""The schedules of stages that have several parts of the model."""


MOST_MICROBATCHES = 1_000_000
MOST_PARTS = 4096
MOST_PASSES = 65_536
"""Microbatches of a step; parts of a model in a pipeline; and microbatches times parts where each
is a pass of its own: 9 s and 0.5 GiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """The pipeline over the axes `stage` and `dcn_stage`.

    schedule: `gpipe`, `1f1b`, `interleaved`, `zb-h1`, `zb-h2` or `circular`; empty for `1f1b`.
        `circular` is one program, in which idle stages compute garbage.
    virtual_stages: parts of the model per stage, for `interleaved` and `circular`.
    stage_layers: layers of each part in the model's order, if unequal.
    """

    schedule: ScheduleName = ""
    virtual_stages: int = 1
    stage_layers: Sequence[int] = ()

    def __post_init__(self) -> None:
        check_words("plan.pipeline", self)
        check_positive("plan.pipeline.virtual_stages", self.virtual_stages)
        if not is_list(self.stage_layers):
            raise PlanError(
                f"plan.pipeline.stage_layers is {self.stage_layers!r}; write a list of whole "
                "numbers, such as [16, 16, 15]"
            )
        for position, layers in enumerate(self.stage_layers):
            check_positive(f"plan.pipeline.stage_layers[{position}]", layers)
        object.__setattr__(self, "stage_layers", tuple(self.stage_layers))

    def active_schedule(self, stages: int) -> str:
        """Return the schedule of so many stages; it is empty where there is one."""
        return (self.schedule or "1f1b") if stages > 1 else ""

    def check_together(self, mesh: Mapping[str, int], offload: Sequence[str]) -> None:
        """Raise PlanError for keys that contradict each other.

        mesh: devices along each axis.
        offload: tensors that the plan saves on the host.
        """
        staged = any(axis in mesh for axis in STAGE_AXES)
        given = {"schedule": self.schedule, "stage_layers": list(self.stage_layers)}
        for key, value in given.items():
            if value and not staged:
                raise PlanError(
                    f"plan.pipeline.{key} is {value!r}, but no axis of the mesh has stages; write "
                    "one, such as stage = 4"
                )
        schedule = self.schedule or "1f1b"
        if self.virtual_stages > 1 and schedule not in _CHUNKED:
            raise PlanError(
                f"plan.pipeline.virtual_stages is {self.virtual_stages}, but the schedule "
                f"{schedule} has one part of the model per stage; write schedule = "
                f"{' or '.join(map(repr, _CHUNKED))}, or leave it out"
            )
        if schedule == "interleaved" and self.virtual_stages == 1:
            raise PlanError(
                "plan.pipeline.schedule is 'interleaved', but plan.pipeline.virtual_stages is 1, "
                "so there is nothing to interleave; write virtual_stages = 2 or more, or schedule "
                "= '1f1b'"
            )
        if offload and schedule.startswith("zb"):
            raise PlanError(
                f"plan.remat.offload is {list(offload)}, but the schedule {schedule} keeps what "
                "weight gradients read in HBM until it makes them; leave it out, or write schedule "
                "= '1f1b'"
            )

    def check_size(self, stages: int, microbatches: int) -> None:
        """Raise PlanError for more microbatches, or parts of the model, than can be simulated."""
        slots = self.active_schedule(stages) in SLOT_SCHEDULES
        if stages * self.virtual_stages > MOST_PARTS:
            raise PlanError(
                f"the pipeline has {stages} stages of {shown(self.virtual_stages)} parts; write "
                f"plan.pipeline.virtual_stages of at most {max(1, MOST_PARTS // stages)}"
                + (f", and at most {MOST_PARTS:,} stages" if stages > MOST_PARTS else "")
            )
        most = MOST_PASSES // (stages * self.virtual_stages) if slots else MOST_MICROBATCHES
        if microbatches > most:
            each = ", as each stage's passes are simulated one by one" if slots else ""
            raise PlanError(
                f"plan.microbatches is {shown(microbatches)}; write at most {most:,}{each}"
            )

    def phrases(self, stages: int) -> Iterator[str]:
        """Yield the phrase of a plan's text: the schedule, and uneven or multi-part stages."""
        if schedule := self.active_schedule(stages):
            chunks = f" x {self.virtual_stages}" if self.virtual_stages > 1 else ""
            layers = ", ".join(map(str, self.stage_layers))
            yield f"pipeline {schedule}{chunks}" + (f" (layers {layers})" if layers else "")


def stages_of(mesh: Mapping[str, int]) -> int:
    """Return the stages of a mesh; 1 where no axis has any."""
    return int(prod(mesh.get(axis, 1) for axis in STAGE_AXES))
