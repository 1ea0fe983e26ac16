"""The search for the best plans of a space, with proof: branch and bound.

Every plan has a lower bound in closed form (`bound`), of its step and of its memory. Plans are
simulated in the order of their bounds until none that is left can be among the best: the
answer is that of simulating all. A space that is too large to bound is searched locally
(`local_search`), which proves nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import dataclass
from time import monotonic

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import PlanError, nearest
from tpusim.base.short_repr import ShortRepr
from tpusim.base.shown_value import shown
from tpusim.base.value_checks import check_positive
from tpusim.models import Architecture
from tpusim.plan import Input
from tpusim.searches.bounded_plans import bounded_plans
from tpusim.searches.hunt import FoundPlan, Hunt, SearchState, gap_of
from tpusim.searches.local_search import LocalSearch
from tpusim.searches.objectives import OBJECTIVES, Goal, checked_limits, checked_objectives
from tpusim.searches.plan_space import PlanSpace
from tpusim.simulation.arguments import check_input, check_model, described
from tpusim.sweeps.processes import (
    check_workers,
    prepare_workers,
    process_count,
    worker_pool,
)
from tpusim.training import TrainingRun

METHODS = PROVED, LOCAL = "proved", "local"

CHUNKS_ELSEWHERE = 16
"""Processes that an executor is taken to have: that many chunks run ahead of their answers."""


@dataclass(frozen=True, slots=True, repr=False)
class SearchResult(ShortRepr):
    """The best plans of a space, or its Pareto front where there are two objectives.

    objectives: names.
    best: plans that fit, the best first; of a front, by the first objective.
    proved: no plan of the space is better than these.
    possible: no plan of the space has a lower value of the first objective; 0 of a local search.
    plans: of the space, as the model tells them apart.
    left_out: how many of them may not be an answer, by reason; of a local search, none.
    admitted: those whose sizes divide, and whose bounds are within HBM and the limits; a local
        search counts a plan in each neighbourhood that it was bounded in.
    simulated: those that were simulated.
    tried: those of them that have a step, in the order of the search.
    seconds: of the search.
    interrupted: by Ctrl-C.
    """

    objectives: tuple[str, ...]
    best: tuple[FoundPlan, ...]
    proved: bool
    possible: float
    plans: int
    left_out: Mapping[str, int]
    admitted: int
    simulated: int
    tried: tuple[FoundPlan, ...]
    seconds: float
    interrupted: bool = False

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        """Yield what is known, and the best plans."""
        known = "proved" if self.proved else f"not proved, gap {self.gap:.1%}"
        what = " and ".join(self.objectives)
        yield (
            f"best {what} of {self.plans:,} plans: {known}; {self.simulated:,} simulated in "
            f"{self.seconds:.1f} s"
        )
        for found in self.best:
            values = ", ".join(
                OBJECTIVES[name].words(value)
                for name, value in zip(self.objectives, found.values, strict=True)
            )
            yield f"  {values} on {found.pod}: {found.plan}"

    @property
    def gap(self) -> float:
        """How far the best plan may be above the best possible, as a fraction; 0 if proved."""
        if self.proved:
            return 0.0
        if not self.best or not self.possible:
            return float("inf")
        return gap_of(self.best[0].values[0], self.possible)


@checked_call
def search(
    model: Architecture | str,
    space: PlanSpace,
    objective: str | Sequence[str] = "step_time",
    *,
    run: TrainingRun | None = None,
    input: Input | None = None,
    top: int = 1,
    at_most: Mapping[str, float] | None = None,
    method: str = PROVED,
    starts: int = 4,
    seed: int = 0,
    workers: int | None = None,
    executor: Executor | None = None,
    progress: Callable[[SearchState], None] | None = None,
) -> SearchResult:
    """Return the best plans of a space, proved by lower bounds of all others.

    model: an architecture, or the name of a published one.
    objective: `step_time`, `chip_time` (seconds of a chip for each token), `cost` (USD for each
        token, on demand), `energy` (J for each token), `time_to_train` or `cost_to_train` (of
        `run`); or two of them for their Pareto front.
    run: the training run of `time_to_train` and `cost_to_train`. Its own price and step time do not
        count.
    input: the hosts' input pipeline, beside which plans are simulated; None for batches that are
        there when a step begins. It only adds to a step, so what is proved is proved with it.
    top: plans to return; all of a front.
    at_most: limits of a plan: of any objective, of `chips`, and of `hbm`, the peak as a fraction of
        what programs can use (above 1 has no effect).
    method: `proved`, or `local` for a space that is too large to bound: see `LocalSearch`.
    starts: descents of a local search.
    seed: of a local search.
    workers: processes; by default one per CPU, or this process alone for few plans.
    executor: simulates instead, for example that of a cluster (`ts.cluster`).
    progress: called as plans are simulated.

    Plans that do not fit are out. Of equal plans the first in the order of bounds is best, whatever
    simulates. Ctrl-C ends the search with the best plans so far (`proved` is then False, and `gap`
    says how far they may be off). Raise PlanError for an unknown objective, limit or method, for a
    front by local search, for a chip without its price or power, and for an objective of a training
    run without one.
    """
    began = monotonic()
    order = "write search(model, space)"
    model = check_model(model, order, "search")
    if not isinstance(space, PlanSpace):
        raise PlanError(
            f"the space is {described(space)}; {order}, with a space of ts.PlanSpace(...)"
        )
    check_input(input, space.base.input_s)
    space = space.of(model)
    check_workers(workers, executor, progress)
    goal = Goal(checked_objectives(objective), checked_limits(at_most or {}), run, input)
    check_positive("search.top", top)
    report = progress or (lambda state: None)
    if method not in METHODS:
        raise PlanError(f"search.method is {method!r}; {nearest(str(method), METHODS)}")
    if method == LOCAL:
        check_positive("search.starts", starts)
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise PlanError(f"search.seed is {shown(seed)}; write a whole number")
        hunter: LocalSearch | Hunt = LocalSearch(model, space, goal, top, starts, seed)
        total = len(space)
    else:
        if executor is None and process_count(workers, len(space), len(space)) > 1:
            prepare_workers(["tpusim.searches.hunt"])
        plans = bounded_plans(model, space.blocks, goal)
        hunter = Hunt(model, goal, top, plans)
        total = len(plans)
    count = CHUNKS_ELSEWHERE if executor is not None else process_count(workers, total, total)
    interrupted = False
    alone = count == 1 or executor is not None
    try:
        with nullcontext(executor) if alone else worker_pool(count) as pool:
            hunter.run(count, pool, report)
    except KeyboardInterrupt:
        interrupted = True
    proved = isinstance(hunter, Hunt) and not interrupted
    return SearchResult(
        goal.names,
        tuple(found for _, found in hunter.best),
        proved,
        hunter.possible,
        len(space),
        {} if isinstance(hunter, LocalSearch) else hunter.plans.left_out,
        hunter.admitted,
        hunter.simulated,
        tuple(hunter.tried),
        monotonic() - began,
        interrupted,
    )
