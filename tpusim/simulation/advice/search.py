"""The search for faster plans: the flags first, then the mesh, the program, and the training.

Each level starts from the best of the levels below it, so that a proposal of a higher level is made
only where it saves more than one that takes less. Within a level, changes are found by a climb
(`Climb`); a mesh is first tried as it is, in its first place.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tpusim.results import PlanResult, WayKind
from tpusim.results.proposal import Effort
from tpusim.simulation.advice.climb import Climb, MoreChoices
from tpusim.simulation.advice.decisions import Choice
from tpusim.simulation.advice.trials import Candidate, Trials
from tpusim.simulation.fit_moves import PlanMoves, kernel_results

WORTH = 0.01
"""The fraction of the step that a proposal of a higher level has to save beyond a lower one."""

LITTLE = 0.0005
"""The fraction of the step that each change of a proposal has to save."""

MESHES_CLIMBED = 3
"""Meshes from which a climb starts, of those that were tried as they are."""

ROOM_WORTH = 0.05
"""The fraction of the step that a plan which does not fit has to save beyond the best that does."""

WORSE = 0.05
"""The fraction of the step that a mesh may take more before its climb."""

MORE_BATCH = (2, 4)
NARROW_MATMULS = ("int8", "fp8")


@dataclass
class Search:
    """The search for faster plans of a run.

    trials: what was simulated.
    gains, needs: of choices, as the climbs found them.
    wanted: the fastest candidate of flags alone that does not fit.
    """

    trials: Trials
    gains: dict[tuple[str, str], float] = field(default_factory=dict)
    needs: dict[tuple[str, str], float] = field(default_factory=dict)
    wanted: Candidate | None = None

    def found(self) -> Iterator[Candidate]:
        """Yield the best candidate of each level, the least effort first, where it is worth it.

        A candidate takes the place of those before it that need no less effort. The last may be one
        that does not fit, where it is faster than all of them by much.
        """
        best, held = self.trials.start, list[Candidate]()
        for level in (self._flags, self._meshes, self._program):
            candidate = self._pruned(level(best))
            if self._worth(candidate, best):
                held = [one for one in held if _taken(one) < _taken(candidate)]
                held.append(candidate)
                best = candidate
        yield from held
        for level in (self._numerics, self._batch):
            candidate = self._pruned(level(best))
            if self._worth(candidate, best):
                yield candidate
        if (wanted := self.wanted) is not None:
            more = best.per_example if best.fits else 1.0
            if 1 - wanted.per_example / more >= ROOM_WORTH:
                yield wanted

    def _worth(self, candidate: Candidate, best: Candidate) -> bool:
        if not best.fits:
            return candidate.fits
        return candidate.fits and 1 - candidate.per_example / best.per_example >= WORTH

    def _climb(self, start: Candidate, most: Effort, more: MoreChoices | None = None) -> Candidate:
        """Return the best candidate that is reached from one, by the gains that are known."""
        climb = Climb(self.trials, most, more or _nothing, dict(self.gains), self.needs)
        top = climb.top(start)
        self.gains = self.gains or climb.gains
        return top

    def _flags(self, best: Candidate) -> Candidate:
        """Return the best plan of the same mesh and program."""
        tops = [self._climb(start, Effort.SCHEDULE) for start in (best, *self._saving(best))]
        top = min(tops, key=lambda candidate: candidate.rank)
        top = Climb(self.trials, Effort.SCHEDULE, needs=self.needs).once_more(top)
        self.wanted = self.trials.wanted
        return top

    def _saving(self, best: Candidate) -> Iterator[Candidate]:
        """Yield the plan with the kernels' results saved, by each policy that fits."""
        result = best.result
        kept = kernel_results(result.model, result.plan)
        for policy in ("full", "minimal", "dots"):
            keys = {"remat": policy, "save": [*kept], "offload": []}
            candidate = self.trials.of(best.taking(Choice("remat", f"remat {policy}", keys)))
            if candidate is not None and candidate.fits:
                yield candidate

    def _meshes(self, best: Candidate) -> Candidate:
        """Return the best plan on other meshes, and the best itself if none is faster."""
        tried = [one for mesh in self._moved(best) if (one := self.trials.of(mesh)) is not None]
        near = [one for one in tried if one.per_example < (1 + WORSE) * best.per_example]
        near.sort(key=lambda one: (not one.fits, one.per_example))
        tops = [
            self._climb(start, Effort.MESH, lambda candidate: _mesh_choices(candidate.result))
            for start in (best, *near[:MESHES_CLIMBED])
        ]
        return min((best, *tops), key=lambda candidate: candidate.rank)

    def _moved(self, best: Candidate) -> Iterator[tuple[Choice, ...]]:
        yield from (best.taking(choice) for choice in _mesh_choices(best.result))

    def _program(self, best: Candidate) -> Candidate:
        """Return the best plan of a program in another style."""
        return self._climb(best, Effort.PROGRAM)

    def _numerics(self, best: Candidate) -> Candidate:
        return self._climb(best, _taken(best), lambda candidate: _narrow(candidate.result))

    def _batch(self, best: Candidate) -> Candidate:
        base = self.trials.base.plan.global_batch

        def larger(candidate: Candidate) -> Iterator[Choice]:
            for times in MORE_BATCH:
                if candidate.result.plan.global_batch != times * base:
                    what = f"{times} times the global batch ({times * base})"
                    yield Choice("batch", what, {"global_batch": times * base}, Effort.BATCH)

        return self._climb(best, _taken(best), larger)

    def _pruned(self, candidate: Candidate) -> Candidate:
        """Return a candidate without the choices that save next to nothing and are not needed."""
        for choice in candidate.choices:
            fewer = self.trials.of(candidate.without(choice))
            if fewer is None or fewer.fits < candidate.fits:
                continue
            if fewer.per_example <= candidate.per_example * (1 + LITTLE):
                candidate = fewer
        return candidate


def _taken(best: Candidate) -> Effort:
    """Return the effort that a candidate takes, and that of flags at least."""
    return max((choice.effort for choice in best.choices), default=Effort.FLAG)


def _nothing(candidate: Candidate) -> Iterable[Choice]:
    return ()


def _mesh_choices(result: PlanResult) -> Iterator[Choice]:
    """Yield the meshes with a factor moved from one axis to another."""
    for move in PlanMoves(result.model, result.plan).all([WayKind.MESH]):
        for option in move.options:
            yield Choice("mesh", option.what, option.keys, Effort.MESH)


def _narrow(result: PlanResult) -> Iterator[Choice]:
    """Yield narrower dtypes."""
    plan = result.plan
    for move in PlanMoves(result.model, plan).all([WayKind.NUMERICS]):
        if move.name != "capacity":
            for option in move.options:
                yield Choice(move.name, option.what, option.keys, Effort.NUMERICS)
    for dtype in NARROW_MATMULS:
        if dtype in _faster_dtypes(result) and plan.dtypes.matmul != dtype:
            yield Choice("matmuls", f"matmuls in {dtype}", {"matmul_dtype": dtype}, Effort.NUMERICS)


def _faster_dtypes(result: PlanResult) -> list[str]:
    """Return the dtypes that the chip multiplies faster than the plan's own."""
    rates, now = result.pod.chip.flops, result.plan.dtypes.compute
    return [dtype for dtype, rate in rates.items() if rate > rates.get(now, 0.0)]
