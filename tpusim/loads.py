"""What operations of a program cost alone, in the integers of the engine."""

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from operator import mul
from typing import TypeAlias

from tpusim.costs import CostedProgram, cost_program
from tpusim.engine.code import ON_CORE, LoopEnd, LoopStart, Step
from tpusim.engine.compile import compile_lane
from tpusim.hardware import Placement, Slice
from tpusim.phase import Phase
from tpusim.program import Collective, Loop, Program, Single, counted

Operations: TypeAlias = Mapping[Single, int]
"""Operations that are no loops, and how often each runs."""


@dataclass(frozen=True, slots=True)
class Load:
    """What the tasks of a program ask for, alone and one after the other.

    core_ps, all_ps: picoseconds of those of the core, and of all. links_ps: how long the busiest
    link needs. pattern: equal for two lists of tasks that differ in the names of links only.
    """

    core_ps: int
    all_ps: int
    links_ps: int
    pattern: Hashable


def alike(program: Program) -> Counter[Single]:
    """Operations that cost the same as one, without names and dependencies: how often they run."""
    found: Counter[Single] = Counter()
    for op, times in counted(program.body, program.segments):
        found[_bare(op)] += times
    return found


def _bare(op: Single) -> Single:
    bare = replace(op, name="", scope="", phase=Phase.FORWARD, deps=(), allocs=(), frees=())
    return replace(bare, asked=True) if isinstance(bare, Collective) else bare


def alone(program: Program, some: Operations, pod: Slice, placement: Placement) -> Load:
    """The load of some operations of a program, each repeated in a loop of its own."""
    body = tuple(
        Loop(name=f"loop {number}", trips=times, body=(replace(op, name=f"task {number}"),))
        for number, (op, times) in enumerate(some.items())
    )
    bare = replace(program, body=body, resident=(), segments=())
    return _load(cost_program(bare, pod, placement))


def _load(costed: CostedProgram) -> Load:
    """The load of a program of loops that are not nested.

    The engine's own integers are summed, so no rounding lies between the bound and a run.
    """
    code = compile_lane(costed)
    times, steps = 1, []
    for instruction in code.instructions:
        match instruction:
            case LoopStart():
                end = code.instructions[instruction.end]
                times = end.trips if isinstance(end, LoopEnd) else 1
            case Step():
                steps.append((instruction, times))
    weights = [[0] * len(steps) for _ in code.links]
    for place, (step, _) in enumerate(steps):
        for link, weight in step.uses:
            weights[link][place] = weight
    volumes = [times * step.volume for step, times in steps]
    links = list(zip(code.links, weights, strict=True))
    return Load(
        core_ps=sum(times * step.alone_ps for step, times in steps if step.stream == ON_CORE),
        all_ps=sum(times * step.alone_ps for step, times in steps),
        links_ps=max(sum(map(mul, each, volumes)) // rate for (_, rate), each in links),
        pattern=(
            tuple((step.delay_ps, step.work_ps, step.volume, step.stream) for step, _ in steps),
            tuple(sorted((rate, *each) for (_, rate), each in links)),
        ),
    )
