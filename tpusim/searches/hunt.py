"""Branch and bound: plans are simulated in the order of their bounds while one may win.

A plan whose bound leaves it a chance gets a tighter one of its placements before it is simulated.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import TpusimError
from tpusim.hardware import Slice
from tpusim.models import Architecture
from tpusim.plan import Plan
from tpusim.searches.bounded_plans import BoundedPlans
from tpusim.searches.objectives import HBM, Goal
from tpusim.simulation import simulate
from tpusim.sweeps.processes import MOST_SUBMITTED, run_chunks

LARGEST_CHUNK = 16
"""Plans that a process is given at a time."""

TIGHTENED = 256
"""Plans whose bounds are tightened at a time."""

LARGEST_WINDOW = 128
"""Plans whose order may change so that those of one form are simulated together."""

AHEAD = 2
"""Chunks for each process that are given out before the answers of the last ones are known."""


class FoundPlan(NamedTuple):
    """A plan that was simulated.

    values: of each objective.
    bound: lower bound of the first objective.
    admitted: it fits, and is within the limits of the search.
    """

    plan: Plan
    pod: Slice
    placement: str
    values: tuple[float, ...]
    bound: float
    step_time_s: float
    tokens_per_s: float
    mfu: float
    hbm_peak_bytes: float
    admitted: bool


class SearchState(NamedTuple):
    """The state of a running search.

    simulated: plans.
    left: plans that may still be better.
    best: value of the first objective; infinite until a plan fits.
    possible: no plan has a lower one.
    """

    simulated: int
    left: int
    best: float
    possible: float

    @property
    def gap(self) -> float:
        """How far the best may be above the best possible, as a fraction."""
        return gap_of(self.best, self.possible)


def gap_of(best: float, possible: float) -> float:
    """Return how far a value may be above the best possible, as a fraction."""
    return max(best / possible - 1, 0.0) if best < np.inf else float("inf")


@dataclass(slots=True)
class Hunt:
    """One branch and bound over plans in the order of their bounds.

    top: plans to find; of two objectives, all of the front.
    best: the best so far, each with its number among the plans.
    tried: all that were simulated and have a step, in the order of their answers.
    done: by plan, simulated.
    """

    model: Architecture
    goal: Goal
    top: int
    plans: BoundedPlans
    best: list[tuple[int, FoundPlan]] = field(default_factory=list)
    tried: list[FoundPlan] = field(default_factory=list)
    done: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self.done = np.zeros(len(self.plans), np.bool_)

    def run(
        self, count: int, executor: Executor | None, progress: Callable[[SearchState], None]
    ) -> None:
        """Simulate until no plan that is left can be better.

        count: processes, which is how far the search runs ahead of its answers.
        """
        work = partial(_simulated, self.model, self.goal)
        ahead = min(AHEAD * count, MOST_SUBMITTED)
        for _, chunk, answers in run_chunks(work, self._chunks(count), count, executor, ahead):
            for (at, *_), found in zip(chunk, answers, strict=True):
                self.done[at] = True
                if found is not None:
                    self.tried.append(found)
                    if found.admitted:
                        self._keep(at, found)
            progress(self.state())

    @property
    def admitted(self) -> int:
        """The number of plans that may be the answer by their bounds."""
        return len(self.plans)

    @property
    def simulated(self) -> int:
        """The number of plans that were simulated."""
        return int(self.done.sum())

    @property
    def possible(self) -> float:
        """The lowest value of the first objective that a plan can have; infinite without plans."""
        left = self.plans.lowest[0][~self.done]
        values = [found.values[0] for _, found in self.best[:1]]
        return float(min([*values, *([left.min()] if len(left) else [])], default=np.inf))

    def state(self) -> SearchState:
        """Return how far the search is."""
        best = self.best[0][1].values[0] if self.best else float("inf")
        left = ~self.done
        if len(self.goal.names) == 1 and len(self.best) == self.top:
            left = left & (self.plans.lowest[0] < self.best[-1][1].values[0])
        return SearchState(self.simulated, int(left.sum()), best, self.possible)

    def _chunks(self, count: int) -> Iterator[tuple[int, tuple["_Trial", ...]]]:
        """Yield plans to simulate, with the number of their chunk.

        Plans of one form are together in a window, as the second of a form is quick: all whose
        bounds are below the final answer are simulated in any order.
        """
        number = 0
        for window in self._windows(count):
            alike = window[np.argsort(self.plans.forms[window], kind="stable")]
            largest = min(LARGEST_CHUNK, max(1, len(window) // count))
            for some in np.split(alike, np.arange(largest, len(alike), largest)):
                chunk = tuple(
                    _Trial(int(at), *self.plans.plan(at), float(self.plans.lowest[0][at]))
                    for at in some
                    if self._may_win(at)
                )
                if chunk:
                    yield number, chunk
                    number += 1

    def _windows(self, count: int) -> Iterator[NDArray[np.int64]]:
        """Yield plans in the order of tightened bounds: few until one is found, then doubled."""
        ready: list[tuple[float, int]] = []
        start, size = 0, count
        while True:
            window: list[int] = []
            while len(window) < size:
                start = self._tightened(start, ready)
                if not ready:
                    break
                window.append(heappop(ready)[1])
            if not window:
                return
            yield np.array(window)
            if self.best:
                size = min(2 * size, LARGEST_WINDOW)

    def _tightened(self, start: int, ready: list[tuple[float, int]]) -> int:
        """Move plans from `start` on to `ready` until its first comes before all that are left.

        Return where those that are left start.
        """
        while start < len(self.plans) and (not ready or ready[0] > self._key(start)):
            if len(self.goal.names) == 1 and not self._may_win(start):
                return len(self.plans)
            end = min(start + TIGHTENED, len(self.plans))
            some = np.array([at for at in range(start, end) if self._may_win(at)], np.int64)
            self.plans.tighten(some)
            for at in some.tolist():
                if self._may_win(at):
                    heappush(ready, self._key(at))
            start = end
        return start

    def _key(self, at: int) -> tuple[float, int]:
        """Return the place of a plan in the order of bounds; of two objectives, their product."""
        lowest = self.plans.lowest[:, at]
        return float(lowest[0] if len(self.goal.names) == 1 else np.log(lowest).sum()), at

    def _may_win(self, at: int) -> bool:
        lowest = self.plans.lowest[:, at]
        if len(self.goal.names) == 1:
            if len(self.best) < self.top:
                return True
            last, worst = self.best[-1]
            return bool((lowest[0], at) < (worst.values[0], last))
        return not any(
            all(value <= low for value, low in zip(found.values, lowest, strict=True))
            for _, found in self.best
        )

    def _keep(self, at: int, found: FoundPlan) -> None:
        self.best.append((at, found))
        self.best.sort(key=lambda each: (each[1].values, each[0]))
        if len(self.goal.names) == 1:
            del self.best[self.top :]
            return
        front: list[tuple[int, FoundPlan]] = []
        for each in self.best:
            if not front or each[1].values[1] < front[-1][1].values[1]:
                front.append(each)
        self.best[:] = front


class _Trial(NamedTuple):
    """A plan to simulate.

    at: its number.
    bound: of the first objective.
    """

    at: int
    plan: Plan
    pod: Slice
    bound: float


def _simulated(model: Architecture, goal: Goal, trials: Sequence[_Trial]) -> list[FoundPlan | None]:
    """Simulate plans; None for one that is refused."""
    return [_one(model, goal, trial) for trial in trials]


def _one(model: Architecture, goal: Goal, trial: _Trial) -> FoundPlan | None:
    plan, pod = trial.plan, trial.pod
    try:
        result = simulate(model, plan, pod, input=goal.input)
        values = {name: goal.value(name, result) for name in {*goal.names, *goal.limited}}
    except TpusimError:
        return None
    used = result.hbm_peak_bytes / pod.chip.device.hbm_usable_bytes
    admitted = (
        result.fits
        and used <= goal.limits.get(HBM, np.inf)
        and all(values[name] <= goal.limits[name] for name in goal.limited)
    )
    return FoundPlan(
        plan,
        pod,
        str(result.placement),
        tuple(values[name] for name in goal.names),
        trial.bound,
        result.step_time_s,
        result.tokens_per_s,
        result.mfu,
        result.hbm_peak_bytes,
        bool(admitted),
    )
