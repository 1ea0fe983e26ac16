"""How much of each link is in use, and by what: over the step, and from moment to moment."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from tpusim.costs import CostedProgram, Task, TaskLoop, cost_programs
from tpusim.engine import Record
from tpusim.engine.code import Code, Step
from tpusim.engine.compile import compile_lane
from tpusim.engine.filling import fair_rates
from tpusim.program import Call
from tpusim.result import Result


class Load(NamedTuple):
    """From `start_ps` to `end_ps`: the share of each link that tasks draw, by link and label."""

    start_ps: int
    end_ps: int
    shares: dict[str, dict[str, float]]


def compiled(result: Result) -> Code:
    """The program of a result as the engine ran it, in integer units."""
    costed = cost_programs(result.programs, result.pod, result.placement)[result.lane]
    return compile_lane(costed if not costed.segments else replace(
        costed, body=tuple(_tasks(costed)), segments=(), ways=(), resident=(),
    ))  # fmt: skip


def _tasks(costed: CostedProgram) -> Iterable[Task]:
    """The tasks that a stage's operations, calls and messages have, one of each name, by itself."""
    bodies = [[op for op in costed.body if not isinstance(op, Call)]]
    bodies += [list(segment.body) for segment in costed.segments]
    bodies.append([way.task for way in costed.ways])
    found: dict[str, Task] = {}
    while bodies:
        for op in bodies.pop():
            if isinstance(op, TaskLoop):
                bodies.append(list(op.body))
            else:
                found[op.name] = replace(op, deps=(), allocs=(), frees=())
    return found.values()


def link_volumes(result: Result) -> dict[str, Counter[str]]:
    """Nanobytes that each link carried in the step, by label of the tasks; none is left out.

    The sum of a link is the `volume_nb` of `timeline.links`.
    """
    code = compiled(result)
    names = [name for name, _ in code.links]
    steps = {step.task.name: step for step in (*code.steps, *code.host)}
    volumes: dict[str, Counter[str]] = {name: Counter() for name in names}
    for record in result.shown.tasks:
        step = steps[record.name]
        for link, weight in step.uses:
            volumes[names[link]][record.label] += weight * step.volume * record.count
    return volumes


def loads(result: Result, start_ps: int, end_ps: int) -> list[Load]:
    """The load of the links between two times, a row for each time in which it is constant.

    A task draws at the rate that the engine gave it: the fair one among those in flight,
    from the end of its delay to its own end.
    """
    code = compiled(result)
    flows = _flows(result.shown.tasks, code, start_ps, end_ps)
    times = sorted({start_ps, end_ps, *(time for _, *span in flows for time in span)})
    rows, active, at = [], list[tuple[Step, int, int]](), 0
    for begin, end in pairwise(times):
        active = [flow for flow in active if flow[2] > begin]
        while at < len(flows) and flows[at][1] <= begin:
            active += [flows[at]] if flows[at][2] > begin else []
            at += 1
        if start_ps <= begin < end_ps:
            rows.append(Load(begin, end, _shares([step for step, _, _ in active], code)))
    return rows


def _flows(
    records: Sequence[Record], code: Code, start_ps: int, end_ps: int
) -> list[tuple[Step, int, int]]:
    """Step, start and end of each flow that may be in flight between two times."""
    steps = {step.task.name: step for step in code.steps if step.volume}
    flows = [
        (steps[record.name], start + steps[record.name].delay_ps, start + record.duration_ps)
        for record in records
        if record.name in steps
        for start in between(record, start_ps, end_ps)
    ]
    return sorted(flows, key=lambda flow: flow[1])


def between(record: Record, start_ps: int, end_ps: int) -> Iterator[int]:
    """The starts of those of its times at which it runs between two times."""
    earliest = start_ps - record.duration_ps
    return (start for start in record.starts() if earliest < start < end_ps)


def _shares(steps: Sequence[Step], code: Code) -> dict[str, dict[str, float]]:
    shares: dict[str, dict[str, float]] = {}
    rates = fair_rates(steps, [rate for _, rate in code.links]) if steps else []
    for step, drawn in zip(steps, rates, strict=True):
        for link, weight in step.uses:
            name, capacity = code.links[link]
            labels = shares.setdefault(name, {})
            labels[step.task.label] = labels.get(step.task.label, 0) + weight * drawn / capacity
    return shares
