"""The layers of each stage of a pipeline, and the plan of a stage by itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from tpusim.base.errors import PlanError
from tpusim.plan.axes import axes_of
from tpusim.plan.default_rules import DEFAULT_RULES
from tpusim.plan.pipeline import CIRCULAR, STAGE_AXES
from tpusim.plan.plan import Plan
from tpusim.plan.sharding import Sharding


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
    given = tuple(plan.pipeline.stage_layers)
    parts = _PipelineParts(
        plan.stages, plan.pipeline.virtual_stages, plan.active_schedule == CIRCULAR
    )
    _check_axes(plan.sharding)
    parts.check_count(layers, model)
    if given:
        parts.check_layers(given, layers)
    elif layers % parts.count:
        raise PlanError(parts.unequal(layers, model))
    return (0, *accumulate(given or [layers // parts.count] * parts.count))


def _check_axes(sharding: Sharding) -> None:
    """Raise PlanError for a rule or an annotation over an axis of the stages."""
    rules = {f"rules.{key}": axes_of(rule) for key, rule in sharding.rules.items()}
    noted = {
        f"annotate.{name}": tuple(axis for rule in given for axis in axes_of(rule))
        for name, given in sharding.annotate.items()
    }
    for where, axes in (rules | noted).items():
        for axis in axes:
            if axis in STAGE_AXES:
                raise PlanError(
                    f"plan.{where} shards over {axis!r}, which cuts the model between its layers "
                    "and shards nothing inside of a stage; write another axis, or leave it out"
                )


@dataclass(frozen=True, slots=True)
class _PipelineParts:
    """The parts into which a pipeline cuts the layers of a model.

    chunks: parts of each stage.
    circular: True if one program runs all stages, so that the parts of a round are equal.
    """

    stages: int
    chunks: int
    circular: bool

    @property
    def count(self) -> int:
        """The parts of all stages."""
        return self.stages * self.chunks

    def __str__(self) -> str:
        each = f" x {self.chunks} virtual stages" if self.chunks > 1 else ""
        return f"{self.stages} stages{each}"

    def check_count(self, layers: int, model: str) -> None:
        """Raise PlanError for more parts than layers."""
        if self.count > layers:
            chunks = layers // self.stages
            most = f"virtual_stages = {chunks} at most" if chunks else f"at most {layers} stages"
            raise PlanError(
                f"the mesh has {self}, but {model} has {layers} layers, and each needs one; "
                f"write {most}"
            )

    def check_layers(self, given: Sequence[int], layers: int) -> None:
        """Raise PlanError for given numbers of layers that are not those of these parts."""
        if len(given) != self.count:
            raise PlanError(
                f"plan.stage_layers has {len(given)} number{'s' * (len(given) > 1)}, but there are "
                f"{self}; write one for each"
            )
        if sum(given) != layers:
            raise PlanError(
                f"plan.stage_layers adds up to {sum(given)} layers, but the model has {layers}; "
                f"write numbers that add up to {layers}"
            )
        rounds = [given[at : at + self.stages] for at in range(0, self.count, self.stages)]
        if self.circular and any(len(set(each)) > 1 for each in rounds):
            raise PlanError(
                f"plan.stage_layers is {list(given)}, but one program runs all stages of a "
                f"circular pipeline; write equal numbers for the {self.stages} parts of a round, "
                "or another schedule"
            )

    def unequal(self, layers: int, model: str) -> str:
        """Return the message for layers that the parts cannot share equally."""
        near = [layers // self.count + (part < layers % self.count) for part in range(self.count)]
        return f"{model} has {layers} layers, which {self} cannot share equally; " + (
            f"write numbers whose product divides {layers}, as one program runs all stages, or "
            "another schedule with stage_layers"
            if self.circular
            else f"write how many each has, such as stage_layers = {near}"
        )
