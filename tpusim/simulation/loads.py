"""The costs of operations in isolation, in the integers of the engine."""

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from operator import mul
from typing import TypeAlias

from tpusim.base.phase import Phase
from tpusim.costs import cost_program
from tpusim.engine import ON_CORE, LaneCode, LoopEnd, TaskStep, compile_lane
from tpusim.hardware import Placement, Slice
from tpusim.program import Collective, Loop, Program, Single, walk_ops

OperationCounts: TypeAlias = Mapping[Single, int]
"""Executions of each operation that is not a loop."""


@dataclass(frozen=True, slots=True)
class TaskTotals:
    """The totals of a program's tasks in isolation, one after the other.

    core_ps, all_ps: picoseconds of the core's tasks, and of all.
    links_ps: picoseconds of the busiest link.
    pattern: equal for two lists of tasks that differ in the names of links only.
    """

    core_ps: int
    all_ps: int
    links_ps: int
    pattern: Hashable


def distinct_operations(program: Program) -> Counter[Single]:
    """Count the executions of operations with equal costs, without names and dependencies."""
    found: Counter[Single] = Counter()
    for op, times in walk_ops(program.body, program.segments):
        found[_bare(op)] += times
    return found


def _bare(op: Single) -> Single:
    bare = replace(op, name="", scope="", phase=Phase.FORWARD, deps=(), allocs=(), frees=())
    return replace(bare, asked=True) if isinstance(bare, Collective) else bare


def isolated_totals(
    program: Program, some: OperationCounts, pod: Slice, placement: Placement
) -> TaskTotals:
    """Return the totals of some operations of a program, each repeated in a loop of its own."""
    body = tuple(
        Loop(name=f"loop {number}", trips=times, body=(replace(op, name=f"task {number}"),))
        for number, (op, times) in enumerate(some.items())
    )
    bare = replace(program, body=body, resident=(), segments=())
    return code_totals(compile_lane(cost_program(bare, pod, placement)))


def core_ps(code: LaneCode) -> int:
    """Return the picoseconds of the core's tasks of a lane, which no step of it is shorter than."""
    return sum(times * step.alone_ps for step, times in _steps_with_runs(code) if _on_core(step))


def _on_core(step: TaskStep) -> bool:
    return step.stream == ON_CORE


def _steps_with_runs(code: LaneCode) -> list[tuple[TaskStep, int]]:
    """Return the steps of a lane, and how often each runs."""
    runs, steps = [1], []
    for instruction in code.instructions:
        if isinstance(instruction, TaskStep):
            steps.append((instruction, runs[-1]))
        elif isinstance(instruction, LoopEnd):
            runs.pop()
        else:
            end = code.instructions[instruction.end]
            runs.append(runs[-1] * (end.trips if isinstance(end, LoopEnd) else 1))
    return steps


def code_totals(code: LaneCode) -> TaskTotals:
    """Return the totals of a lane.

    The engine's own integers are summed, so no rounding separates the bound from a run.
    """
    steps = _steps_with_runs(code)
    weights = [[0] * len(steps) for _ in code.links]
    for at, (step, _) in enumerate(steps):
        for link, weight in step.uses:
            weights[link][at] = weight
    volumes = [times * step.volume for step, times in steps]
    links = list(zip(code.links, weights, strict=True))
    return TaskTotals(
        core_ps=core_ps(code),
        all_ps=sum(times * step.alone_ps for step, times in steps),
        links_ps=max(sum(map(mul, each, volumes)) // rate for (_, rate), each in links),
        pattern=(
            tuple((step.delay_ps, step.work_ps, step.volume, step.stream) for step, _ in steps),
            tuple(sorted((rate, *each) for (_, rate), each in links)),
        ),
    )
