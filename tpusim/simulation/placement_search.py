"""The search for the fastest placement of a step, among those of its mesh on the slice.

All of them could be simulated, but most cannot win. The core is in order, and a task that shares
its links only takes longer, so no schedule of a program is shorter than its core's tasks in
isolation, one after the other. Placements are simulated in the order of this bound until none that
is left can beat the best: the same answer as simulating all of them.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from tpusim.costs import CostedProgram, cost_programs
from tpusim.engine import Timeline
from tpusim.hardware import Placement, Slice
from tpusim.lowering import group_of
from tpusim.pipeline.planned_step import PlannedStep, Programs
from tpusim.program import Collective, Program
from tpusim.simulation.fastest_candidate import fastest
from tpusim.simulation.loads import OperationCounts, distinct_operations, isolated_totals

Engine: TypeAlias = Callable[[Sequence[CostedProgram]], Timeline]


@dataclass(frozen=True, slots=True)
class PlacedRun:
    """A step on one placement: its programs and its timeline."""

    placement: Placement
    programs: Programs
    timeline: Timeline

    @property
    def device_ps(self) -> int:
        """The device's own picoseconds."""
        return self.timeline.device_ps


@dataclass(frozen=True, slots=True)
class PlacementBound:
    """A candidate placement of a step, with bounds known before it is simulated.

    number: its position in the order of the candidates.
    collectives_ps: all its collectives in isolation, one after the other.
    least_ps: a lower bound of its step.
    pattern: equal for placements with equal runs, as they differ in the names of links only.
    """

    number: int
    placement: Placement
    programs: Programs
    collectives_ps: int
    least_ps: int
    pattern: Hashable


def run_on(placement: Placement, programs: Programs, pod: Slice, engine: Engine) -> PlacedRun:
    """Run programs that were lowered for the placement."""
    return PlacedRun(placement, programs, engine(cost_programs(programs, pod, placement)))


def placement_bounds(
    step: PlannedStep, pod: Slice, placements: Iterable[Placement]
) -> list[PlacementBound]:
    """Lower and bound each placement, in their order.

    The lowering sees only the groups of a placement's collectives (`group_of`), so placements with
    equal groups have the same programs. Their compute takes the same time on all of them; only the
    collectives are costed for each. No lane of a pipeline is shorter than its core's tasks, but the
    time of its messages is known by simulation alone, so each of its placements has a pattern of
    its own.
    """
    known: dict[Hashable, tuple[Programs, list[_ProgramParts]]] = {}
    found = []
    for number, placement in enumerate(placements):
        groups = tuple(group_of(each, pod, placement) for each in step.axes)
        if groups not in known:
            programs = step.programs_on(placement)
            known[groups] = programs, [_parts(program, pod, placement) for program in programs]
        programs, parts = known[groups]
        totals = [
            isolated_totals(program, part.traffic, pod, placement)
            for program, part in zip(programs, parts, strict=True)
        ]
        least_ps = max(
            max(part.compute_ps + total.core_ps, total.links_ps)
            for part, total in zip(parts, totals, strict=True)
        )
        pattern = (groups, totals[0].pattern) if len(totals) == 1 else number
        all_ps = max(total.all_ps for total in totals)
        found.append(PlacementBound(number, placement, programs, all_ps, least_ps, pattern))
    return found


def fastest_placement(
    bounds: Iterable[PlacementBound], pod: Slice, engine: Engine
) -> tuple[PlacedRun, dict[Hashable, int]]:
    """Return the fastest run, and the picoseconds of each pattern that was simulated to find it.

    See `fastest`.
    """
    return fastest(_BoundedPlacement(bound, pod, engine) for bound in bounds)


@dataclass(frozen=True, slots=True)
class _BoundedPlacement:
    """A placement as a candidate of the search; its bound is tight from the start."""

    bound: PlacementBound
    pod: Slice
    engine: Engine

    @property
    def number(self) -> int:
        return self.bound.number

    @property
    def least_ps(self) -> int:
        return self.bound.least_ps

    def examine(self) -> tuple[int, Hashable]:
        return self.bound.least_ps, self.bound.pattern

    def simulate(self, best_ps: int | None) -> PlacedRun:
        return run_on(self.bound.placement, self.bound.programs, self.pod, self.engine)


class _ProgramParts(NamedTuple):
    """The collectives of a program, and the core's picoseconds in the rest."""

    traffic: OperationCounts
    compute_ps: int


def _parts(program: Program, pod: Slice, placement: Placement) -> _ProgramParts:
    counted = distinct_operations(program)
    traffic: OperationCounts = {
        op: times for op, times in counted.items() if isinstance(op, Collective)
    }
    rest = {op: times for op, times in counted.items() if op not in traffic}
    return _ProgramParts(traffic, isolated_totals(program, rest, pod, placement).core_ps)
