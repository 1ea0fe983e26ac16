"""The search for what makes a plan fit: single changes first, then more, each simulated.

Changes are tried kind by kind (`WayKind`), the smallest kind first. Of single changes of a kind
that fit, the one with the shortest step is taken. Where none does, the change that frees most is
made, and the others are tried on top of it; what is then more than needed is taken back. The search
ends after a fixed amount of simulation, so that its answer is always the same.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from threading import local

from tpusim.base.same import Same
from tpusim.base.units import format_bytes
from tpusim.hardware import Slice
from tpusim.results import PlanResult
from tpusim.results.ways_to_fit import WayKind, WaysToFit, WayToFit
from tpusim.simulation.fit_moves import REMAT_MOVES, Move, PlanMoves, names_back, saving
from tpusim.simulation.fit_trials import ONE_MORE, FitTrials, Made, Trial, keys_of
from tpusim.simulation.fit_ways import confirmed, on_slice
from tpusim.simulation.larger_slices import larger_axes, larger_slices, on_larger

MOST_NAMES = 8
"""Names that may be saved again, at most."""

MOST_MADE = 4
"""Changes that are made together, at most."""

COSTLY = 0.05
"""The fraction of the step from which on several changes of a larger kind are tried too."""

TIMES = 2.0
"""Times the step that a way may take and still come before a larger change that takes less."""

LITTLE_TIME = 0.01
"""The fraction of a step that any change counts as taking, beside what it does take."""


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
        _LAST.key, _LAST.ways = key, _FitSearch(FitTrials(result)).ways()
    return _LAST.ways


@dataclass
class _FitSearch:
    """The search for what makes a plan fit. trials: what was tried so far."""

    trials: FitTrials

    def ways(self) -> WaysToFit:
        """Return what was found."""
        found: list[WayToFit] = []
        for kind in (WayKind.TRAINING, WayKind.HOST, WayKind.NUMERICS, WayKind.MESH):
            best = min((way.step_time_s for way in found), default=inf)
            several = best > (1 + COSTLY) * self.trials.base.step_time_s
            more = self._best(kind, several=several)
            enough = best - ONE_MORE * self.trials.base.step_time_s
            found += [way for way in more if way.step_time_s < enough]
        if not found and self.trials.leanest is not None and self.trials.leanest.roomy:
            found += confirmed(self.trials, [self.trials.leanest], sure=False)
        found += self._on_larger(found)
        found.sort(key=lambda way: way.step_time_s > TIMES * self.trials.base.step_time_s)
        return WaysToFit(tuple(found), self.trials.tried, "" if found else self._why())

    def _best(self, kind: WayKind, *, several: bool) -> list[WayToFit]:
        """Return the smallest way of a kind, if any.

        several: more than one change may be made.
        """
        start = Trial.of((), self.trials.base)
        singles = [*self._singles(start, (kind,))]
        fitting = [each for each in singles if each.fits]
        if several and not any(self.trials.cost(each) <= ONE_MORE for each in fitting):
            rest = [each for each in singles if not each.fits and each.need < start.need]
            fitting += self._combined(_firsts(start, rest), kind)
        if fitting:
            fitting.append(self._saving(min(fitting, key=self.trials.cost)))
        return confirmed(self.trials, fitting)

    def _combined(self, firsts: Sequence[Trial], kind: WayKind) -> list[Trial]:
        """Return changes on top of the first ones that fit, of the smallest kinds that do."""
        smaller = [each for each in WayKind if each < kind]
        for kinds in (smaller[:1], [*smaller, kind]) if smaller else ([kind],):
            ends = (self._deepened(first, kinds) for first in firsts)
            if fitting := [self._relaxed(end) for end in ends if end is not None]:
                return fitting
        return []

    def _singles(self, start: Trial, kinds: Iterable[WayKind]) -> Iterator[Trial]:
        """Yield each further move: its weakest option that fits, or else the strongest."""
        names = {made.move.name for made in start.made}
        for move in PlanMoves(self.trials.base.model, start.result.plan).all(kinds):
            if move.name not in names:
                last = self._strongest(start.made, move)
                if last is not None:
                    yield self._weakest(last) if last.fits else last

    def _strongest(self, made: tuple[Made, ...], move: Move) -> Trial | None:
        """Return the last option of a move that can be simulated."""
        for number in reversed(range(len(move.options))):
            if (trial := self.trials.trial((*made, Made(move, number)))) is not None:
                return trial
        return None

    def _weakest(self, trial: Trial) -> Trial:
        """Return the first option of the last move that fits, as far as bisection finds it."""
        *before, last = trial.made
        low, high = 0, last.number
        while low < high:
            middle = (low + high) // 2
            found = self.trials.trial((*before, Made(last.move, middle)))
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
        best, cost = list[Trial](), self.trials.cost
        while len(trial.made) < MOST_MADE:
            more = [each for each in self._singles(trial, kinds) if each.need < trial.need]
            best += [each for each in more if each.fits]
            most = min(map(cost, best), default=inf)
            rest = [each for each in more if not each.fits and cost(each) + ONE_MORE < most]
            if not rest:
                break
            trial = min(rest, key=lambda each: each.need)
        return min(best, key=cost, default=None)

    def _relaxed(self, trial: Trial) -> Trial:
        """Return a trial without what it does not need, move by move, the first one first."""
        cost = self.trials.cost
        for made in trial.made:
            others = tuple(each for each in trial.made if each.move.name != made.move.name)
            without = self.trials.trial(others) if others else None
            if without is not None and without.fits and cost(without) <= cost(trial):
                trial = without
                continue
            last = trial._replace(made=(*others, made))
            trial = min((trial, self._weakest(last)), key=cost)
        return trial

    def _saving(self, trial: Trial) -> Trial:
        """Return a trial that saves again what it has room for, the most time for its bytes first.

        For one that saves as much as the plan did, return it.
        """
        if not any(made.move.name in REMAT_MOVES for made in trial.made):
            return trial
        plan, best, kept = trial.result.plan, trial, list[str]()
        singles = []
        for name in names_back(self.trials.base, trial.result)[:MOST_NAMES]:
            found = self.trials.trial((*trial.made, Made(saving(plan, (name,)), 0)))
            if found is not None and found.step_s < trial.step_s:
                gain = trial.step_s - found.step_s
                singles.append((gain / max(found.need - trial.need, 1.0), name))
        for _, name in sorted(singles, reverse=True):
            found = self.trials.trial((*trial.made, Made(saving(plan, (*kept, name)), 0)))
            if found is not None and found.fits and found.step_s < best.step_s:
                best, kept = found, [*kept, name]
        return best

    def _on_larger(self, found: Sequence[WayToFit]) -> list[WayToFit]:
        """Return the plan on the smallest larger slice on which it fits, if any.

        found: what fits on the slice itself; without any, what needs least there is tried too.
        """
        lean = () if found or self.trials.leanest is None else (self.trials.leanest.made,)
        for pod in larger_slices(self.trials.base.pod):
            for made in ((), *lean):
                for axis in larger_axes(self.trials.base.plan.mesh):
                    if (trial := self._larger(made, pod, axis)) is not None:
                        return [on_slice(self.trials, trial, axis)]
        return []

    def _larger(self, made: tuple[Made, ...], pod: Slice, axis: str) -> Trial | None:
        """Return changes on a larger slice, without those that are not needed; None if too large.

        axis: of the mesh, that gets the devices.
        """
        base = self.trials.base
        plan = on_larger(base.plan.replace(**keys_of(made)), base.pod, pod, axis)
        result = None if self.trials.over else self.trials.simulated(plan, pod)
        if result is None or not Trial.of(made, result).fits:
            return None
        for each in made:
            others = tuple(one for one in made if one is not each)
            if (found := self._larger(others, pod, axis)) is not None:
                return found
        return Trial.of(made, result)

    def _why(self) -> str:
        """Return why there is no way: what needs least, and what larger slices are refused for."""
        pod, lean = self.trials.base.pod, self.trials.leanest
        larger, chip = any(True for _ in larger_slices(pod)), pod.chip.name
        where = ", on this slice or a larger one" if larger else f", and {chip} has no larger slice"
        parts = [f"none of {self.trials.tried} plans that were tried fits{where}"]
        if lean is not None and lean.made:
            what = ", ".join(made.option.what for made in lean.made)
            parts.append(f"the least need is {format_bytes(lean.need)}, with {what}")
        return "; ".join([*parts, *self.trials.refusals[:1]])


def _firsts(start: Trial, freeing: Iterable[Trial]) -> list[Trial]:
    """Return what frees most for its time, what frees most, and the fastest that frees much."""
    trials = [*freeing]
    if not trials:
        return []

    def worth(trial: Trial) -> float:
        more = max(trial.result.step_time_s / start.result.step_time_s - 1, 0.0)
        return (start.need - trial.need) / (more + LITTLE_TIME)

    least = min(trials, key=lambda each: each.need)
    much = [each for each in trials if start.need - each.need > (start.need - least.need) / 2]
    found = max(trials, key=worth), least, min(much, key=lambda each: each.step_s)
    return [each for at, each in enumerate(found) if all(each is not one for one in found[:at])]
