"""A local search, for spaces with more plans than can be bounded. It proves nothing.

A descent by neighbourhoods. A neighbour of a plan differs in one decision: another slice on which
at most one axis has another size, a mesh in which two axes have, other numbers of microbatches and
another batch, or another value of one key. The neighbours of a plan are searched by branch and
bound, so that a descent ends at a plan that is proved to be the best of its neighbourhood while
most neighbours are never simulated. Descents start at the best plans of a random sample, found by
branch and bound too: that takes a tenth of its simulations, and starts that do not fit, which are
most of a space, are out.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import PlanError
from tpusim.models import Architecture
from tpusim.plan import PLAN_KEYS
from tpusim.searches.bounded_plans import bounded_plans
from tpusim.searches.hunt import FoundPlan, Hunt, SearchState
from tpusim.searches.idle_keys import FOLLOWING
from tpusim.searches.objectives import Goal
from tpusim.searches.plan_space import NUMBERS, PlanSpace, is_of_kernel

SAMPLE = 1024
"""Plans of the random sample."""

DRAWN = 32
"""Plans that are drawn for each of the sample, since sizes of many do not divide."""


class Point(NamedTuple):
    """A plan of a space: its form, the row of its mesh, and the row of its numbers."""

    form: int
    mesh: int
    numbers: int


@dataclass(slots=True)
class LocalSearch:
    """The descents of one search.

    goal, top: as of a `Hunt`.
    starts: descents.
    seed: of the random sample; the answer depends on it, and not on the processes.
    best: the best plans at which a descent was, each with the number of its start.
    tried: all that were simulated and have a step.
    admitted: plans that were bounded, and may be an answer.
    simulated: plans.
    """

    model: Architecture
    space: PlanSpace
    goal: Goal
    top: int
    starts: int
    seed: int
    best: list[tuple[int, FoundPlan]] = field(default_factory=list)
    tried: list[FoundPlan] = field(default_factory=list)
    admitted: int = 0
    simulated: int = 0

    possible = 0.0
    """A local search knows no bound of the plans that it has not seen."""

    def __post_init__(self) -> None:
        if len(self.goal.names) > 1:
            raise PlanError(
                "a local search has one objective; write one, or search with proof for a front"
            )

    def run(
        self, count: int, executor: Executor | None, progress: Callable[[SearchState], None]
    ) -> None:
        """Descend from each start.

        count: processes of the executor.
        """

        def hunted(points: Sequence[Point], top: int, here: FoundPlan | None) -> "_Steps":
            return self._hunted(points, top, here, count, executor, progress)

        near = Neighbourhood(self.space)
        visited: set[Point] = set()
        for start, found in hunted(near.sample(self.seed), self.starts, None):
            step: tuple[Point, FoundPlan] | None = (start, found)
            seen = {start}
            while step is not None and step[0] not in visited:
                here, found = step
                visited.add(here)
                others = [point for point in near.of(here) if point not in seen]
                seen.update(others)
                step = next(iter(hunted(others, 1, found)), None)

    def _hunted(
        self,
        points: Sequence[Point],
        top: int,
        here: FoundPlan | None,
        count: int,
        executor: Executor | None,
        progress: Callable[[SearchState], None],
    ) -> "_Steps":
        """Return the best of some plans that are better than the plan here, the best first."""
        forms = [list(some) for _, some in groupby(sorted(points), key=lambda point: point.form)]
        blocks = [
            self.space.plans(self.space.forms[some[0].form], *np.array(some)[:, 1:].T)
            for some in forms
        ]
        plans = bounded_plans(self.model, blocks, self.goal)
        known = [] if here is None else [(-1, here)]
        hunt = Hunt(self.model, self.goal, top, plans, known)
        before = self.simulated

        def report(state: SearchState) -> None:
            value = min([state.best, *(found.values[0] for _, found in self.best[:1])])
            progress(SearchState(before + state.simulated, state.left, value, self.possible))

        try:
            hunt.run(count, executor, report)
        finally:
            self.admitted += len(plans)
            self.simulated += hunt.simulated
            self.tried += hunt.tried
            found = [each for each in hunt.best if each[0] >= 0]
            self._keep([each for _, each in found])
        return [
            (forms[block][place], each) for at, each in found for block, place in [plans.order[at]]
        ]

    def _keep(self, found: Sequence[FoundPlan]) -> None:
        known = {(repr(each.plan), each.pod): each for each in [*(e for _, e in self.best), *found]}
        order = sorted(known.values(), key=lambda each: each.values)
        self.best[:] = list(enumerate(order[: self.top]))


_Steps = list[tuple[Point, FoundPlan]]


@dataclass(frozen=True)
class Neighbourhood:
    """The neighbours of the plans of a space."""

    space: PlanSpace

    def sample(self, seed: int) -> list[Point]:
        """Return plans at random, up to `SAMPLE`, each once."""
        space = self.space
        sizes = [len(space.forms), len(space.table[0]), len(space.numbers)]
        drawn = np.random.default_rng(seed).integers(sizes, size=(DRAWN * SAMPLE, 3))
        fine = np.zeros(len(drawn), np.bool_)
        for form in range(len(space.forms)):
            (some,) = np.nonzero(drawn[:, 0] == form)
            divide = space.divide(space.forms[form], drawn[some, 1])
            fine[some] = divide[np.arange(len(some)), drawn[some, 2]]
        points = dict.fromkeys(Point(*map(int, row)) for row in drawn[fine])
        return list(points)[:SAMPLE]

    def of(self, point: Point) -> list[Point]:
        """Return the neighbours of a plan, with all numbers where its mesh changes."""
        values = self._values
        differ = values != values[point.form]
        alike = np.flatnonzero(~differ[:, ~self._following].any(axis=1))
        one = np.flatnonzero(differ.sum(axis=1) == 1)
        here = np.array([point.mesh])
        found = [
            *self._points(alike, np.append(self._meshes(point.mesh), here)),
            *(each for each in self._points(one, here) if each.numbers == point.numbers),
        ]
        return [each for each in dict.fromkeys(found) if each != point]

    def _points(self, forms: NDArray[np.int64], meshes: NDArray[np.int64]) -> list[Point]:
        return [
            Point(int(form), int(meshes[row]), int(number))
            for form in forms
            for row, number in np.argwhere(self.space.divide(self.space.forms[form], meshes))
        ]

    def _meshes(self, row: int) -> NDArray[np.int64]:
        """Return meshes of the same slice with two other sizes, of another with at most one."""
        pods, sizes = self.space.table
        differ = (sizes != sizes[row]).sum(axis=1)
        same = pods == pods[row]
        return np.flatnonzero((same & (differ == 2)) | (~same & (differ <= 1)))

    @cached_property
    def _keys(self) -> list[str]:
        return [key for key in self.space.vary if key not in NUMBERS and not is_of_kernel(key)]

    @cached_property
    def _following(self) -> NDArray[np.bool_]:
        """Whether each key may change nothing on some meshes, and so follows the mesh."""
        return np.array([PLAN_KEYS.field_of(key) in FOLLOWING for key in self._keys], np.bool_)

    @cached_property
    def _values(self) -> NDArray[np.int64]:
        """A number for each value of a form, [form, key]."""
        codes: dict[str, int] = {}
        rows = [
            [codes.setdefault(repr(form.base.value(key)), len(codes)) for key in self._keys]
            for form in self.space.forms
        ]
        return np.array(rows, np.int64).reshape(len(rows), len(self._keys))
