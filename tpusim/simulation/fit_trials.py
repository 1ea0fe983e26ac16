"""The trials of a search for what makes a plan fit: changes, simulated within a budget."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

from tpusim.base.errors import TpusimError
from tpusim.base.hashable import hashable
from tpusim.graph import walk
from tpusim.hardware import Placement, Slice, candidates
from tpusim.pipeline.planned_step import planned_graph
from tpusim.plan import Plan
from tpusim.results import Fit, PlanResult
from tpusim.results.ways_to_fit import WayKind
from tpusim.simulation.changed_run import run_changed
from tpusim.simulation.fit_moves import Move, Option

BUDGET_US = 2_000_000
"""Microseconds of all simulations, by what they count as: none is measured."""

EVENT_US, OPERATION_US = 15, 72
"""Microseconds of an event, and of an operation of the graph that is partitioned and lowered: the
fit to 50 plans of all architectures."""

FOR_CHIPS = 0.2
"""The fraction of the budget that larger slices have for themselves."""

ONE_MORE = 0.02
"""The fraction of the step that each further change of a way has to save, and what it does that no
compiled program shows."""

MOST_PLACES = 4
"""Placements of a mesh that are simulated, in the mean of the searches for the best, at most."""


class Made(NamedTuple):
    """A change that was made: a move, and the number of its option."""

    move: Move
    number: int

    @property
    def option(self) -> Option:
        """What was done."""
        return self.move.options[self.number]


class Trial(NamedTuple):
    """Changes that were made together, and the step with them."""

    made: tuple[Made, ...]
    result: PlanResult
    roomy: bool
    fits: bool

    @classmethod
    def of(cls, made: tuple[Made, ...], result: PlanResult) -> "Trial":
        """Return changes and their step.

        roomy: it needs no more than there is, on its hosts neither.
        fits: the same for sure.
        """
        have = result.pod.chip.host_bytes
        roomy = result.fits and (have is None or result.host_need_bytes <= have)
        return cls(made, result, roomy, roomy and result.fit is Fit.FITS)

    @property
    def keys(self) -> dict[str, Any]:
        """The keys of all changes."""
        return keys_of(self.made)

    @property
    def step_s(self) -> float:
        """Seconds of the step."""
        return self.result.step_time_s

    @property
    def need(self) -> float:
        """Bytes of HBM at the peak."""
        return self.result.hbm_peak_bytes


@dataclass
class FitTrials:
    """What was tried.

    base: the plan that does not fit.
    spent_us: microseconds of all simulations, as they count.
    tried: plans that were simulated.
    known: results by their keys.
    leanest: the trial that needs least without another mesh.
    refusals: of plans on larger slices, the reasons.
    """

    base: PlanResult
    spent_us: int = 0
    tried: int = 0
    known: dict[Any, PlanResult | None] = field(default_factory=dict)
    leanest: Trial | None = None
    refusals: list[str] = field(default_factory=list)

    @property
    def over(self) -> bool:
        """True if the budget is spent."""
        return self.spent_us > BUDGET_US

    def cost(self, trial: Trial) -> float:
        """Return the fraction of the step that a trial takes more, and that its changes count."""
        more = trial.result.step_time_s / self.base.step_time_s - 1
        return more + ONE_MORE * (len(trial.made) - 1 + len(self._unlike(trial.result)))

    def _unlike(self, result: PlanResult) -> set[str]:
        """Return what no compiled program had that a plan has, but not the first one."""
        new, old = result.hbm_odds, self.base.hbm_odds
        return set(new.unlike if new else ()) - set(old.unlike if old else ())

    def trial(self, made: tuple[Made, ...]) -> Trial | None:
        """Simulate changes on one placement. Return None if they are refused, or time is up."""
        keys = keys_of(made)
        key = hashable(dict(sorted(keys.items())))
        if key not in self.known:
            if self.spent_us > BUDGET_US * (1 - FOR_CHIPS):
                return None
            self.known[key] = self._run(keys)
        result = self.known[key]
        if result is None:
            return None
        trial = Trial.of(made, result)
        moved = any(each.move.kind is WayKind.MESH for each in made)
        if not moved and (self.leanest is None or trial.need < self.leanest.need):
            self.leanest = trial
        return trial

    def _run(self, keys: Mapping[str, Any]) -> PlanResult | None:
        """Simulate changed keys in the place of the plan, or another mesh in its first place."""
        try:
            plan = self.base.plan.replace(**keys)
            if "mesh" not in keys:
                return self.simulated(plan, self.base.pod, [self.base.placement])
            first = candidates(self.base.pod, plan.mesh)[:1]
        except TpusimError:
            return None
        return self.simulated(plan, self.base.pod, first)

    def simulated(
        self, plan: Plan, pod: Slice, among: Sequence[Placement] | None = None
    ) -> PlanResult | None:
        """Simulate a plan on the best of some placements, by default of all; None if refused."""
        try:
            plan = plan.replace(placement=None)
            places = len(among or candidates(pod, plan.mesh))
            result = run_changed(self.base, plan, pod, None, among=among)
        except TpusimError as error:
            if pod != self.base.pod:
                self.refusals.append(str(error))
            return None
        count = sum(1 for _ in walk(planned_graph(self.base.model, plan).ops))
        each = EVENT_US * result.timeline.stats.events + OPERATION_US * count
        self.spent_us += each * min(places, MOST_PLACES)
        self.tried += 1
        return result


def keys_of(made: Iterable[Made]) -> dict[str, Any]:
    """Return the keys of all changes."""
    return dict(chain.from_iterable(each.option.keys.items() for each in made))
