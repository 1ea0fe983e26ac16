"""The steps that were simulated last, which other placements and other calls may share."""

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import fields, is_dataclass
from threading import local
from typing import Any

from tpusim.hardware import Slice
from tpusim.models import Architecture
from tpusim.pipeline.planned_step import planned_step
from tpusim.plan import Plan
from tpusim.simulation.placement_search import StepOnPlacements

MOST_STEPS = 16
"""Steps that are kept; the one that was not used for longest goes first."""

_FIELDS = tuple(each.name for each in fields(Plan) if each.name != "placement")


class KnownSteps(local):
    """The steps of a thread, by their model, their slice, and all of their plan but placements."""

    def __init__(self) -> None:
        self._steps: OrderedDict[Hashable, StepOnPlacements] = OrderedDict()

    def step(self, model: Architecture, plan: Plan, pod: Slice) -> StepOnPlacements:
        """Return the step of a plan. Raise PlanError as `planned_step` does."""
        key = (model, pod, *(_hashable(getattr(plan, name)) for name in _FIELDS))
        found = self._steps.get(key)
        if found is None:
            found = self._steps[key] = StepOnPlacements(planned_step(model, plan, pod), pod)
            if len(self._steps) > MOST_STEPS:
                self._steps.popitem(last=False)
        self._steps.move_to_end(key)
        return found


def _hashable(value: Any) -> Hashable:
    """Return a hashable form of a plan's field."""
    if isinstance(value, Mapping):
        return tuple((key, _hashable(inner)) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(_hashable, value))
    if is_dataclass(value):
        return type(value), *(_hashable(getattr(value, each.name)) for each in fields(value))
    return value  # type: ignore[no-any-return]


KNOWN_STEPS = KnownSteps()
"""Those of each thread of this process."""
