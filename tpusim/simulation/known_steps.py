"""The steps that were simulated last, which other placements and other calls may share."""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import fields
from threading import local

from tpusim.base.hashable import hashable
from tpusim.base.same import Same
from tpusim.hardware import Slice
from tpusim.models import Architecture
from tpusim.pipeline.planned_step import planned_step
from tpusim.plan import Plan, Sharding
from tpusim.simulation.placement_search import StepOnPlacements

MOST_STEPS = 16
"""Steps that are kept; the one that was not used for longest goes first."""

_SHARDING = tuple(each.name for each in fields(Sharding) if each.name != "placement")


_TABLES = ("mesh", "rules", "annotate", "context")
"""Fields with dictionaries, whose items may change in the same plan."""


class KnownSteps(local):
    """The steps of a thread, by their model, their slice, and all of their plan but placements."""

    def __init__(self) -> None:
        self._steps: OrderedDict[Hashable, StepOnPlacements] = OrderedDict()
        self._last: tuple[Hashable, StepOnPlacements] | None = None

    def step(self, model: Architecture, plan: Plan, pod: Slice) -> StepOnPlacements:
        """Return the step of a plan. Raise PlanError as `planned_step` does.

        That of the plan before is found at once, as a sweep goes from placement to placement.
        """
        last = Same((model, plan, pod)), *(hashable(getattr(plan, name)) for name in _TABLES)
        if self._last is None or self._last[0] != last:
            self._last = last, self._step(model, plan, pod)
        return self._last[1]

    def _step(self, model: Architecture, plan: Plan, pod: Slice) -> StepOnPlacements:
        sharding = (hashable(getattr(plan.sharding, name)) for name in _SHARDING)
        key = (model, pod, *sharding, hashable(plan.numerics), plan.compiler, plan.training)
        found = self._steps.get(key)
        if found is None:
            step = planned_step(model, plan.replace(placement=None), pod)  # a copy
            found = self._steps[key] = StepOnPlacements(step, pod)
            if len(self._steps) > MOST_STEPS:
                self._steps.popitem(last=False)
        self._steps.move_to_end(key)
        return found


KNOWN_STEPS = KnownSteps()
"""Those of each thread of this process."""
