"""Which placement a step runs on: the fastest of those that its mesh can have on the slice.

All of them could be simulated, but most cannot win. The core is in order, and a task that shares
its links only takes longer, so no schedule of a program is shorter than its core's tasks alone, one
after the other. Placements are simulated in the order of this bound, until none that is left can
beat the best: the same answer as simulating all of them.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tpusim.costs import CostedProgram, cost_program
from tpusim.engine import Timeline
from tpusim.graph import Graph
from tpusim.hardware import Placement, Slice
from tpusim.loads import Operations, alike, alone
from tpusim.partition import Plan, Template, lower
from tpusim.partition.groups import group_of
from tpusim.partition.template import Comm, body_nodes
from tpusim.program import Collective, Program

Engine: TypeAlias = Callable[[Sequence[CostedProgram]], Timeline]


@dataclass(frozen=True, slots=True)
class Run:
    """A step on one placement: its program, and what happened when."""

    placement: Placement
    program: Program
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
    program: Program
    collectives_ps: int
    least_ps: int
    pattern: Hashable


def run_on(placement: Placement, program: Program, pod: Slice, engine: Engine) -> Run:
    """The step of a program that was lowered for the placement."""
    return Run(placement, program, engine([cost_program(program, pod, placement)]))


def ways(
    template: Template, graph: Graph, plan: Plan, pod: Slice, laid: Iterable[Placement]
) -> list[Way]:
    """A way for each placement, lowered and bounded, in their order.

    The lowering sees of a placement no more than the groups of its collectives (`group_of`), so
    placements whose groups look alike to it have one program. Its compute takes the same time on
    all of them; only the collectives are costed for each.
    """
    axes = {node.axes for node, _ in body_nodes(template.nodes) if isinstance(node, Comm)}
    known: dict[Hashable, tuple[Program, Operations, int]] = {}
    found = []
    for number, placement in enumerate(laid):
        groups = tuple(group_of(each, pod, placement) for each in axes)
        if groups not in known:
            known[groups] = _parts(lower(template, graph, plan, pod, placement), pod, placement)
        program, traffic, compute_ps = known[groups]
        load = alone(program, traffic, pod, placement)
        least_ps = max(compute_ps + load.core_ps, load.links_ps)
        pattern = (groups, load.pattern)
        found.append(Way(number, placement, program, load.all_ps, least_ps, pattern))
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
        run = run_on(way.placement, way.program, pod, engine)
        took = times[way.pattern] = run.timeline.device_ps
        if best is None or (took, way.number) < best[:2]:
            best = (took, way.number, run)
    if best is None:
        raise ValueError("there is no placement to run on")
    return best[2], times


def _parts(program: Program, pod: Slice, placement: Placement) -> tuple[Program, Operations, int]:
    """The program, its collectives, and the picoseconds of the rest on the core."""
    counted = alike(program)
    traffic: Operations = {op: times for op, times in counted.items() if isinstance(op, Collective)}
    rest = {op: times for op, times in counted.items() if op not in traffic}
    return program, traffic, alone(program, rest, pod, placement).core_ps
