"""The costs of operations in isolation, in the integers of the engine."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import mul
from typing import TypeAlias, TypeVar

from tpusim.base.phase import Phase
from tpusim.costs import cost_program
from tpusim.engine import ON_CORE, LaneCode, PipelineCode, StageCode, TaskStep, compile_lane
from tpusim.hardware import Placement, Slice
from tpusim.program import Collective, Loop, Number, Program, Single, largest, walk_ops

BareOperation = TypeVar("BareOperation", bound=Single)

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
        found[bare_operation(op)] += times
    return found


def bare_operation(op: BareOperation) -> BareOperation:
    """Return an operation without what does not change its costs."""
    bare = replace(op, name="", scope="", phase=Phase.FORWARD, deps=(), allocs=(), frees=())
    return replace(bare, asked=True, tensor="") if isinstance(bare, Collective) else bare


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


def core_ps(code: LaneCode | PipelineCode) -> int:
    """Return the picoseconds of the core's tasks of a lane, which no step of it is shorter than.

    Of the lanes of a pipeline, they are those of the lane with the most.
    """
    if isinstance(code, PipelineCode):
        parts = [core_ps(part.code) for part in code.parts]
        most: Number = 0
        for stage in code.stages:
            most = largest(most, _of_stage(stage, parts))
        return int(most)
    return _core_ps_of(code.runs())


def _of_stage(stage: StageCode, of_parts: Sequence[int]) -> int:
    """Return the sum over the runs of a stage; `of_parts` has what each part takes."""
    return sum(len(runs) * of_parts[part] for part, runs in stage.calls)


def _core_ps_of(steps: Sequence[tuple[TaskStep, int]]) -> int:
    return sum(times * step.alone_ps for step, times in steps if step.stream == ON_CORE)


def code_totals(code: LaneCode | PipelineCode) -> TaskTotals:
    """Return the totals of a lane, or of the lane of a pipeline that has most.

    The engine's own integers are summed, so no rounding separates the bound from a run.
    """
    if isinstance(code, PipelineCode):
        return _pipeline_totals(code)
    steps = code.runs()
    weights = [[0] * len(steps) for _ in code.links]
    for at, (step, _) in enumerate(steps):
        for link, weight in step.uses:
            weights[link][at] = weight
    volumes = [times * step.volume for step, times in steps]
    links = list(zip(code.links, weights, strict=True))
    return TaskTotals(
        core_ps=_core_ps_of(steps),
        all_ps=sum(times * step.alone_ps for step, times in steps),
        links_ps=max(sum(map(mul, each, volumes)) // rate for (_, rate), each in links),
        pattern=(
            tuple((step.delay_ps, step.work_ps, step.volume, step.stream) for step, _ in steps),
            tuple(sorted((rate, *each) for (_, rate), each in links)),
        ),
    )


def _pipeline_totals(code: PipelineCode) -> TaskTotals:
    """Return the totals of the lane that has most.

    Parts of a lane follow one another, so each takes at least as long as its busiest link. The time
    of messages is known by simulation alone, so each pipeline has a pattern of its own.
    """
    parts = [code_totals(part.code) for part in code.parts]

    def most(of_parts: Sequence[int]) -> int:
        return max(_of_stage(stage, of_parts) for stage in code.stages)

    return TaskTotals(
        core_ps=most([part.core_ps for part in parts]),
        all_ps=most([part.all_ps for part in parts]),
        links_ps=most([max(part.core_ps, part.links_ps) for part in parts]),
        pattern=object(),
    )
