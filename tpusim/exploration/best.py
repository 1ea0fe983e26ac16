"""The search for the best plans of a space, with proof: branch and bound.

Every plan has a lower bound in closed form (`bound`), of its step and of its memory. Plans are
simulated in the order of their bounds until none that is left can be among the best: the
answer is that of simulating all.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from signal import SIG_IGN, SIGINT, signal
from time import monotonic
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import PlanError, TpusimError, nearest
from tpusim.base.value_checks import check_positive
from tpusim.exploration.bound import bounds
from tpusim.exploration.objectives import OBJECTIVES, Batches, ObjectiveValues
from tpusim.exploration.plan_space import PlanSpace
from tpusim.exploration.processes import process_count, run_chunks
from tpusim.hardware import Slice
from tpusim.models import Architecture
from tpusim.plan import Plan
from tpusim.simulation import simulate
from tpusim.training import TrainingRun

WAVE = 8
"""Plans that a process is given at a time."""


class FoundPlan(NamedTuple):
    """A plan that was simulated.

    values: of each objective.
    """

    plan: Plan
    pod: Slice
    placement: str
    values: tuple[float, ...]
    step_time_s: float
    tokens_per_s: float
    mfu: float
    hbm_peak_bytes: float


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The best plans of a space, or its Pareto front where there are two objectives.

    objectives: names.
    best: plans that fit, the best first; of a front, by the first objective.
    proved: no plan of the space is better than these.
    possible: no plan of the space has a lower value of the first objective.
    plans: of the space.
    admitted: those whose sizes divide, and whose state fits HBM by its bound.
    simulated: those that were simulated.
    seconds: of the search.
    """

    objectives: tuple[str, ...]
    best: tuple[FoundPlan, ...]
    proved: bool
    possible: float
    plans: int
    admitted: int
    simulated: int
    seconds: float

    @property
    def gap(self) -> float:
        """How far the best plan may be above the best possible, as a fraction; 0 if proved."""
        if self.proved or not self.best:
            return 0.0 if self.proved else float("inf")
        return max(self.best[0].values[0] / self.possible - 1, 0.0)


class SearchState(NamedTuple):
    """The state of a running search: plans simulated and left, and values of the objective."""

    simulated: int
    left: int
    best: float
    possible: float


def search(
    model: Architecture,
    space: PlanSpace,
    objective: str | Sequence[str] = "step_time",
    *,
    run: TrainingRun | None = None,
    top: int = 1,
    workers: int | None = None,
    progress: Callable[[SearchState], None] | None = None,
) -> SearchResult:
    """Return the best plans of a space, proved by lower bounds of all others.

    objective: a name of `OBJECTIVES`, or two for their Pareto front.
    run: the training run of `time_to_train` and `cost_to_train`. Its own price and step time do not
        count.
    top: plans to return; all of a front.
    workers: processes; by default one per CPU, or this process alone for few plans.
    progress: called as plans are simulated.

    Plans that do not fit are out. Of equal plans the first in the space is best. Ctrl-C ends the
    search with the best plans so far (`proved` is then False, and `gap` says how far they may be
    off). Raise PlanError for an unknown objective, for a chip without its price or power, and for
    an objective of a training run without one.
    """
    began = monotonic()
    names = (objective,) if isinstance(objective, str) else tuple(objective)
    for name in names:
        if name not in OBJECTIVES:
            raise PlanError(f"objective is {name!r}; {nearest(name, OBJECTIVES)}")
    if not 1 <= len(names) <= 2 or len(set(names)) < len(names):
        raise PlanError(f"objective is {objective!r}; write one, or two that differ for a front")
    check_positive("top", top)
    values = ObjectiveValues(names, run)
    waiting = _bounded(model, space, values)
    hunt = _Hunt(model, values, top, waiting)
    proved = hunt.run(workers, progress or (lambda state: None))
    return SearchResult(
        names,
        tuple(found for _, found in hunt.best),
        proved,
        hunt.possible,
        len(space),
        len(waiting.order),
        hunt.simulated,
        monotonic() - began,
    )


@dataclass(frozen=True, slots=True)
class _Bounded:
    """Plans in the order of their bounds.

    order: of each, its block and its place there.
    lowest: bounds of each objective, [objective, plan].
    """

    space: PlanSpace
    order: NDArray[np.int64]
    lowest: NDArray[np.float64]

    def plan(self, at: int) -> tuple[Plan, Slice]:
        block, place = self.order[at]
        plans = self.space.blocks[block]
        return plans.plan(int(place)), plans.pods[plans.pod[place]]


def _bounded(model: Architecture, space: PlanSpace, values: ObjectiveValues) -> _Bounded:
    """Bound all plans, and order those that may fit."""
    names = values.names
    usable = np.array([pod.chip.device.hbm_usable_bytes for pod in space.slices])
    weights = [np.array([OBJECTIVES[name].weight(pod) for pod in space.slices]) for name in names]
    order, lowest = [], []
    for number, plans in enumerate(space.blocks):
        known = bounds(model, plans)
        (places,) = np.nonzero(known.hbm_bytes <= usable[plans.pod])
        seconds = known.seconds[places]
        batches = Batches(plans.global_batch[places], plans.base.seq_len)
        lowest.append(
            [
                values.lowest(name, seconds, weight[plans.pod[places]], batches)
                for name, weight in zip(names, weights, strict=True)
            ]
        )
        order.append(np.stack([np.full(len(places), number), places], axis=1))
    every, bound = np.concatenate(order), np.concatenate(lowest, axis=1)
    key = bound[0] if len(names) == 1 else np.log(bound).sum(axis=0)
    first = np.argsort(key, kind="stable")
    return _Bounded(space, every[first], bound[:, first])


@dataclass(slots=True)
class _Hunt:
    """One search: what is known so far."""

    model: Architecture
    values: ObjectiveValues
    top: int
    waiting: _Bounded
    best: list[tuple[int, FoundPlan]] = field(default_factory=list)
    simulated: int = 0
    next: int = 0

    def run(self, workers: int | None, progress: Callable[[SearchState], None]) -> bool:
        """Simulate until no plan that is left can be better; False if that was interrupted."""
        total = len(self.waiting.order)
        count = process_count(workers, total, total)
        try:
            with _pool(count) as executor:
                for wave in self._waves(count):
                    self._simulate(wave, count, executor)
                    progress(self._state())
        except KeyboardInterrupt:
            return False
        return True

    @property
    def possible(self) -> float:
        """The lowest value of the first objective that a plan can have."""
        left = self.waiting.lowest[0][self.next :]
        values = [found.values[0] for _, found in self.best[:1]]
        return float(min([*values, *([left.min()] if len(left) else [])], default=np.inf))

    def _state(self) -> SearchState:
        best = self.best[0][1].values[0] if self.best else float("inf")
        return SearchState(self.simulated, len(self.waiting.order) - self.next, best, self.possible)

    def _waves(self, count: int) -> Iterator[list[int]]:
        """Yield the next plans to simulate: few until one fits, then `WAVE` for each process."""
        total = len(self.waiting.order)
        while self.next < total:
            size = count * (WAVE if self.best else 1)
            wave: list[int] = []
            while self.next < total and len(wave) < size:
                if self._may_win(self.next):
                    wave.append(self.next)
                elif len(self.values.names) == 1:
                    self.next = total
                    break
                self.next += 1
            if wave:
                yield wave

    def _may_win(self, at: int) -> bool:
        lowest = self.waiting.lowest[:, at]
        if len(self.values.names) == 1:
            if len(self.best) < self.top:
                return True
            last, worst = self.best[-1]
            return (lowest[0], at) < (worst.values[0], last)
        return not any(
            all(value <= low for value, low in zip(found.values, lowest, strict=True))
            for _, found in self.best
        )

    def _simulate(self, wave: list[int], count: int, executor: Executor | None) -> None:
        plans = [self.waiting.plan(at) for at in wave]
        chunks = {n: plans[n::count] for n in range(min(count, len(plans)))}
        work = partial(_simulated, self.model, self.values)
        for n, _, answers in run_chunks(work, chunks.items(), count, executor):
            for at, found in zip(wave[n::count], answers, strict=True):
                self.simulated += 1
                if found is not None:
                    self._keep(at, found)

    def _keep(self, at: int, found: FoundPlan) -> None:
        self.best.append((at, found))
        self.best.sort(key=lambda each: (each[1].values, each[0]))
        if len(self.values.names) == 1:
            del self.best[self.top :]
            return
        front: list[tuple[int, FoundPlan]] = []
        for each in self.best:
            if not front or each[1].values[1] < front[-1][1].values[1]:
                front.append(each)
        self.best[:] = front


def _simulated(
    model: Architecture, values: ObjectiveValues, plans: Sequence[tuple[Plan, Slice]]
) -> list[FoundPlan | None]:
    """Simulate plans; None for one that is refused or does not fit."""
    return [_one(model, values, plan, pod) for plan, pod in plans]


def _one(model: Architecture, values: ObjectiveValues, plan: Plan, pod: Slice) -> FoundPlan | None:
    try:
        result = simulate(model, plan, pod)
        found = values.of(result) if result.fits else ()
    except TpusimError:
        return None
    if not found:
        return None
    return FoundPlan(
        plan,
        pod,
        str(result.placement),
        found,
        result.step_time_s,
        result.tokens_per_s,
        result.mfu,
        result.hbm_peak_bytes,
    )


@contextmanager
def _pool(count: int) -> Iterator[Executor | None]:
    """Yield processes that leave Ctrl-C to this one; None where this one is enough."""
    if count == 1:
        yield None
        return
    pool = ProcessPoolExecutor(
        count, mp_context=get_context("spawn"), initializer=signal, initargs=(SIGINT, SIG_IGN)
    )
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
