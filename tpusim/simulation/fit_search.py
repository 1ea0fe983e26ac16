"""The search for what makes a plan fit: single changes first, then more, each simulated.

Changes are tried kind by kind (`WayKind`), the smallest kind first. Of single changes of a kind
that fit, the one with the shortest step is taken. Where none does, the change that frees most is
made, and the others are tried on top of it; what is then more than needed is taken back. The search
ends after a fixed amount of simulation, so that its answer is always the same.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import inf
from threading import local
from typing import Any, NamedTuple

from tpusim.base.errors import TpusimError
from tpusim.base.hashable import hashable
from tpusim.base.same import Same
from tpusim.base.units import format_bytes
from tpusim.graph import walk
from tpusim.hardware import Placement, Slice, candidates, chip_names, load_chip
from tpusim.pipeline.planned_step import planned_graph
from tpusim.plan import Plan
from tpusim.results import Fit, PlanResult
from tpusim.results.advice import setting
from tpusim.results.ways_to_fit import WayKind, WaysToFit, WayToFit
from tpusim.simulation.changed_run import run_changed
from tpusim.simulation.fit_moves import REMAT_MOVES, Move, Option, PlanMoves, names_back, saving
from tpusim.simulation.larger_slices import larger_plans, larger_slices

BUDGET_US = 2_500_000
"""Microseconds of all simulations, by what they count as: none is measured."""

EVENT_US, OPERATION_US = 15, 72
"""Microseconds of an event, and of an operation of the graph that is partitioned and lowered: the
fit to 50 plans of all architectures."""

FOR_CHIPS = 0.2
"""The fraction of the budget that larger slices have for themselves."""

MOST_NAMES = 8
"""Names that may be saved again, at most."""

MOST_MADE = 4
"""Changes that are made together, at most."""

COSTLY = 0.05
"""The fraction of the step from which on several changes of a larger kind are tried too."""

ONE_MORE = 0.02
"""The fraction of the step that each further change of a way has to save, and what it does that no
compiled program shows."""

MOST_PLACES = 4
"""Placements of a mesh that are simulated, in the mean of the searches for the best, at most."""

LITTLE_TIME = 0.01
"""The fraction of a step that any change counts as taking, beside what it does take."""


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
    def need(self) -> float:
        """Bytes of HBM at the peak."""
        return self.result.hbm_peak_bytes


class _Last(local):
    """The last answer of a thread, which several parts of a report ask for."""

    key: Same | None = None
    ways: WaysToFit = WaysToFit((), 0)


_LAST = _Last()


def ways_to_fit(result: PlanResult) -> WaysToFit:
    """Return the smallest changes of each kind with which a plan fits."""
    parts = result.model, result.plan, result.pod, result.placement, result.verdicts
    key = Same((*parts, result.input))
    if _LAST.key != key:
        _LAST.key, _LAST.ways = key, _FitSearch(result).ways()
    return _LAST.ways


@dataclass
class _FitSearch:
    """The search for what makes a plan fit.

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

    def ways(self) -> WaysToFit:
        """Return what was found."""
        found: list[WayToFit] = []
        for kind in (WayKind.TRAINING, WayKind.HOST, WayKind.NUMERICS, WayKind.MESH):
            best = min((way.step_time_s for way in found), default=inf)
            several = best > (1 + COSTLY) * self.base.step_time_s
            more = self._best(kind, several=several)
            enough = best - ONE_MORE * self.base.step_time_s
            found += [way for way in more if way.step_time_s < enough]
        if not found and self.leanest is not None and self.leanest.roomy:
            found += self._confirmed([self.leanest], sure=False)
        found += self._on_larger(found)
        return WaysToFit(tuple(found), self.tried, "" if found else self._why())

    def _best(self, kind: WayKind, *, several: bool) -> list[WayToFit]:
        """Return the smallest way of a kind, if any.

        several: more than one change may be made.
        """
        start = Trial.of((), self.base)
        singles = [*self._singles(start, (kind,))]
        fitting = [each for each in singles if each.fits]
        if several and not any(self._cost(each) <= ONE_MORE for each in fitting):
            rest = [each for each in singles if not each.fits and each.need < start.need]
            fitting += self._combined(_firsts(start, rest), kind)
        if fitting:
            fitting.append(self._saving(min(fitting, key=self._cost)))
        return self._confirmed(fitting)

    def _combined(self, firsts: Sequence[Trial], kind: WayKind) -> list[Trial]:
        """Return changes on top of the first ones that fit, of the smallest kinds that do."""
        smaller = [each for each in WayKind if each < kind]
        for kinds in (smaller[:1], [*smaller, kind]) if smaller else ([kind],):
            ends = (self._deepened(first, kinds) for first in firsts)
            if fitting := [self._relaxed(end) for end in ends if end is not None]:
                return fitting
        return []

    def _cost(self, trial: Trial) -> float:
        """Return the fraction of the step that a trial takes more, and that its changes count."""
        more = trial.result.step_time_s / self.base.step_time_s - 1
        return more + ONE_MORE * (len(trial.made) - 1 + len(self._unlike(trial.result)))

    def _unlike(self, result: PlanResult) -> set[str]:
        """Return what no compiled program had that a plan has, but not the first one."""
        new, old = result.hbm_odds, self.base.hbm_odds
        return set(new.unlike if new else ()) - set(old.unlike if old else ())

    def _singles(self, start: Trial, kinds: Iterable[WayKind]) -> Iterator[Trial]:
        """Yield each further move: its weakest option that fits, or else the strongest."""
        names = {made.move.name for made in start.made}
        for move in PlanMoves(self.base.model, start.result.plan).all(kinds):
            if move.name not in names:
                last = self._strongest(start.made, move)
                if last is not None:
                    yield self._weakest(last) if last.fits else last

    def _strongest(self, made: tuple[Made, ...], move: Move) -> Trial | None:
        """Return the last option of a move that can be simulated."""
        for number in reversed(range(len(move.options))):
            if (trial := self._trial((*made, Made(move, number)))) is not None:
                return trial
        return None

    def _weakest(self, trial: Trial) -> Trial:
        """Return the first option of the last move that fits, as far as bisection finds it."""
        *before, last = trial.made
        low, high = 0, last.number
        while low < high:
            middle = (low + high) // 2
            found = self._trial((*before, Made(last.move, middle)))
            if found is not None and found.fits:
                trial, high = found, middle
            else:
                low = middle + 1
        return trial

    def _deepened(self, trial: Trial, kinds: Collection[WayKind]) -> Trial | None:
        """Return the best trial with further moves that fits; None if none does.

        Moves are added to what needs least, as long as what does not fit yet costs less than the
        best that does.
        """
        best: Trial | None = None
        while len(trial.made) < MOST_MADE:
            more = [each for each in self._singles(trial, kinds) if each.need < trial.need]
            fitting = [each for each in more if each.fits]
            best = min([*fitting, *([best] if best else [])], key=self._cost, default=None)
            most = inf if best is None else self._cost(best)
            rest = [each for each in more if not each.fits and self._cost(each) + ONE_MORE < most]
            if not rest:
                break
            trial = min(rest, key=lambda each: each.need)
        return best

    def _relaxed(self, trial: Trial) -> Trial:
        """Return a trial without what it does not need, move by move, the first one first."""
        for made in trial.made:
            others = tuple(each for each in trial.made if each.move.name != made.move.name)
            without = self._trial(others) if others else None
            if without is not None and without.fits:
                trial = without
                continue
            last = trial._replace(made=(*others, made))
            trial = min((trial, self._weakest(last)), key=_step_s)
        return trial

    def _saving(self, trial: Trial) -> Trial:
        """Return a trial that saves again what it has room for, the most time for its bytes first.

        For one that saves as much as the plan did, return it.
        """
        if not any(made.move.name in REMAT_MOVES for made in trial.made):
            return trial
        plan, best, kept = trial.result.plan, trial, list[str]()
        singles = []
        for name in names_back(self.base, trial.result)[:MOST_NAMES]:
            found = self._trial((*trial.made, Made(saving(plan, (name,)), 0)))
            if found is not None and _step_s(found) < _step_s(trial):
                gain = _step_s(trial) - _step_s(found)
                singles.append((gain / max(found.need - trial.need, 1.0), name))
        for _, name in sorted(singles, reverse=True):
            found = self._trial((*trial.made, Made(saving(plan, (*kept, name)), 0)))
            if found is not None and found.fits and _step_s(found) < _step_s(best):
                best, kept = found, [*kept, name]
        return best

    def _trial(self, made: tuple[Made, ...]) -> Trial | None:
        """Simulate changes on one placement. Return None if they are refused, or time is up."""
        keys = _keys(made)
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
        plan = self.base.plan.replace(**keys)
        if "mesh" not in keys:
            return self._simulated(plan, self.base.pod, [self.base.placement])
        try:
            first = candidates(self.base.pod, plan.mesh)[:1]
        except TpusimError:
            return None
        return self._simulated(plan, self.base.pod, first)

    def _simulated(
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

    def _confirmed(self, trials: Iterable[Trial], *, sure: bool = True) -> list[WayToFit]:
        """Return the fastest trial that also fits where a simulation of its own places it.

        sure: only one that fits for sure.
        """
        for trial in sorted(trials, key=self._cost):
            keys = _keys(trial.made)
            result, keys = self._placed(keys, trial)
            if result is None:
                continue
            placed = Trial.of(trial.made, result)
            if placed.fits or (placed.roomy and not sure):
                settings = tuple(setting(key, value) for key, value in keys.items())
                return [self._way(placed, settings)]
        return []

    def _placed(
        self, keys: dict[str, Any], trial: Trial
    ) -> tuple[PlanResult | None, dict[str, Any]]:
        """Return the result of changed keys on its own placement, and the keys that say so."""
        base, given = self.base, self.base.placement_given
        if "mesh" not in keys and given:
            result: PlanResult | None = trial.result
        else:
            result = self._simulated(base.plan.replace(**keys), base.pod)
        if result is not None and given:
            if "mesh" in keys or base.plan.placement is None:
                keys = keys | {"placement": result.placement.written}
            result = replace(result, plan=base.plan.replace(**keys))
        return result, keys

    def _way(self, trial: Trial, settings: tuple[str, ...], larger: str = "") -> WayToFit:
        """Return the way of a trial. larger: its larger slice in words, if it has one."""
        result, kinds = trial.result, {made.move.kind for made in trial.made}
        kinds |= {WayKind.CHIPS} if larger else set()
        whats = (larger, *(made.option.what for made in trial.made))
        return WayToFit(
            kinds=tuple(sorted(kinds)),
            what=tuple(what for what in whats if what),
            settings=settings,
            plan=result.plan,
            pod=result.pod,
            fit=result.fit,
            odds=result.hbm_odds,
            before_s=self.base.step_time_s,
            step_time_s=result.step_time_s,
            hbm_peak_bytes=result.hbm_peak_bytes,
            hbm_bytes=result.hbm_bytes,
        )

    def _on_larger(self, found: Sequence[WayToFit]) -> list[WayToFit]:
        """Return the plan on the smallest larger slice on which it fits, if any.

        found: what fits on the slice itself; without any, what needs least there is tried too.
        """
        lean = () if found or self.leanest is None else (self.leanest.made,)
        for pod in larger_slices(self.base.pod):
            for made in ((), *lean):
                for larger in larger_plans(
                    self.base.plan.replace(**_keys(made)), self.base.pod, pod
                ):
                    if self.spent_us > BUDGET_US:
                        return []
                    result = self._simulated(larger.plan, pod)
                    if result is not None and Trial.of(made, result).fits:
                        return [self._on_slice(made, result, larger.axis)]
        return []

    def _on_slice(self, made: tuple[Made, ...], result: PlanResult, axis: str) -> WayToFit:
        pod, keys = result.pod, _keys(made) | {"mesh": dict(result.plan.mesh)}
        if self.base.plan.placement is not None:
            keys["placement"] = result.placement.written
            result = replace(result, plan=result.plan.replace(placement=keys["placement"]))
        what = f"{pod.chips} chips with {axis}={result.plan.mesh[axis]}"
        settings = (_slice_setting(pod), *(setting(key, value) for key, value in keys.items()))
        return self._way(Trial.of(made, result), settings, what)

    def _why(self) -> str:
        """Return why there is no way: what needs least, and what larger slices are refused for."""
        parts = [f"none of {self.tried} plans that were tried fits, on this slice or a larger one"]
        if self.leanest is not None and self.leanest.made:
            what = ", ".join(made.option.what for made in self.leanest.made)
            parts.append(f"the least need is {format_bytes(self.leanest.need)}, with {what}")
        return "; ".join([*parts, *self.refusals[:1]])


def _slice_setting(pod: Slice) -> str:
    """Return a slice's shape as `--set` takes it, in place of its name where it may have one."""
    name, chip = pod.chip.name, pod.chip
    if name in chip_names() and (load_chip(name) == chip or pod.clock is not None):
        return f'slice.name="{name}:{pod.topology}"'
    return f'slice.topology="{pod.topology}"'


def _firsts(start: Trial, freeing: Iterable[Trial]) -> list[Trial]:
    """Return what frees most for its time, what frees most, and the fastest that frees much."""
    trials = [*freeing]
    if not trials:
        return []

    def worth(trial: Trial) -> float:
        more = max(trial.result.step_time_s / start.result.step_time_s - 1, 0.0)
        return (start.need - trial.need) / (more + LITTLE_TIME)

    most = start.need - min(each.need for each in trials)
    much = [each for each in trials if start.need - each.need > most / 2]
    found = max(trials, key=worth), min(trials, key=lambda each: each.need), min(much, key=_step_s)
    return [each for at, each in enumerate(found) if all(each is not one for one in found[:at])]


def _keys(made: Iterable[Made]) -> dict[str, Any]:
    """Return the keys of all changes."""
    return dict(chain.from_iterable(each.option.keys.items() for each in made))


def _step_s(trial: Trial) -> float:
    return trial.result.step_time_s
