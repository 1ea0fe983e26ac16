"""Which placement a step runs on: the fastest of those that its mesh can have on the slice.

All of them could be simulated, but most cannot win. The core is in order, and a task that shares
its links only takes longer, so no schedule of a program is shorter than its core's tasks alone, one
after the other. Placements are simulated in the order of this bound, until none that is left can
beat the best: the same answer as simulating all of them.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from tpusim.costs import CostedProgram, cost_programs
from tpusim.engine import Timeline
from tpusim.hardware import Placement, Slice
from tpusim.loads import Operations, alike, alone
from tpusim.partition.groups import group_of
from tpusim.program import Collective, Program
from tpusim.steps import Programs, Step

Engine: TypeAlias = Callable[[Sequence[CostedProgram]], Timeline]


@dataclass(frozen=True, slots=True)
class Run:
    """A step on one placement: its programs, and what happened when."""

    placement: Placement
    programs: Programs
    timeline: Timeline


@dataclass(frozen=True, slots=True)
class Way:
    """A placement that a step can have, before it is simulated.

    number: its place in the order of `placements`.
    collectives_ps: all its collectives alone, one after the other.
    least_ps: a lower bound of its step.
    pattern: ways of one pattern run alike, as they differ in the names of links only.
    """

    number: int
    placement: Placement
    programs: Programs
    collectives_ps: int
    least_ps: int
    pattern: Hashable


def run_on(placement: Placement, programs: Programs, pod: Slice, engine: Engine) -> Run:
    """The step of programs that were lowered for the placement."""
    return Run(placement, programs, engine(cost_programs(programs, pod, placement)))


def ways(step: Step, pod: Slice, laid: Iterable[Placement]) -> list[Way]:
    """A way for each placement, lowered and bounded, in their order.

    The lowering sees of a placement no more than the groups of its collectives (`group_of`), so
    placements whose groups look alike to it have the same programs. Their compute takes the same
    time on all of them; only the collectives are costed for each. No lane of a pipeline is shorter
    than its core's tasks, and what its messages take is known by simulation alone, so each of its
    placements has a pattern of its own.
    """
    known: dict[Hashable, tuple[Programs, list[_Parts]]] = {}
    found = []
    for number, placement in enumerate(laid):
        groups = tuple(group_of(each, pod, placement) for each in step.axes)
        if groups not in known:
            programs = step.laid(placement)
            known[groups] = programs, [_parts(program, pod, placement) for program in programs]
        programs, parts = known[groups]
        loads = [alone(p, part.traffic, pod, placement)
                 for p, part in zip(programs, parts, strict=True)]  # fmt: skip
        least_ps = max(
            max(part.compute_ps + load.core_ps, load.links_ps)
            for part, load in zip(parts, loads, strict=True)
        )
        pattern = (groups, loads[0].pattern) if len(loads) == 1 else number
        all_ps = max(load.all_ps for load in loads)
        found.append(Way(number, placement, programs, all_ps, least_ps, pattern))
    return found


def fastest(
    candidates: Iterable[Way], pod: Slice, engine: Engine
) -> tuple[Run, dict[Hashable, int]]:
    """The fastest step, and the picoseconds of each pattern that was simulated to know it.

    They are the device's own: a host that all of them wait for does not make them equal. Of equal
    ones it is the one that comes first in the order of `placements`.
    """
    times: dict[Hashable, int] = {}
    best: tuple[int, int, Run] | None = None
    for way in sorted(candidates, key=lambda way: (way.least_ps, way.number)):
        if best is not None and best[:2] < (way.least_ps, way.number):
            break
        if way.pattern in times:
            continue
        run = run_on(way.placement, way.programs, pod, engine)
        took = times[way.pattern] = run.timeline.device_ps
        if best is None or (took, way.number) < best[:2]:
            best = (took, way.number, run)
    if best is None:
        raise ValueError("there is no placement to run on")
    return best[2], times


class _Parts(NamedTuple):
    """The collectives of a program, and the picoseconds of the rest on the core."""

    traffic: Operations
    compute_ps: int


def _parts(program: Program, pod: Slice, placement: Placement) -> _Parts:
    counted = alike(program)
    traffic: Operations = {op: times for op, times in counted.items() if isinstance(op, Collective)}
    rest = {op: times for op, times in counted.items() if op not in traffic}
    return _Parts(traffic, alone(program, rest, pod, placement).core_ps)
