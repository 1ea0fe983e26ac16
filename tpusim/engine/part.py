"""A part of a lane that runs alone: the same each time, so it is simulated once.

It is a segment, or the operations that stand between calls. When it begins nothing is in flight,
and it is over when its transfers have drained, so each run of it is like the first.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TypeAlias

from tpusim.costs.tasks import CostedProgram, Task, TaskLoop, TaskOp, TopTask, first_phase
from tpusim.engine.compile import Surroundings
from tpusim.engine.journal import Level, Span, flat, times
from tpusim.engine.lane import Lane
from tpusim.engine.memory import Profile, profile_of
from tpusim.phase import Phase
from tpusim.program import Call

Alone: TypeAlias = Callable[[CostedProgram, Surroundings], Lane]
"""Runs the tasks of a part to their end."""

Spans: TypeAlias = tuple[tuple[Span, tuple[Level, ...]], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What one run of a part does, from time 0.

    tasks, waits: with their levels of repetition. volumes: nanobytes on each of the lane's links.
    """

    name: str
    phase: Phase
    duration_ps: int
    tasks: Spans
    waits: Spans
    volumes: tuple[int, ...]
    profile: Profile
    lane: Lane


class Parts:
    """The parts of several lanes; those that are the same objects in several are run once."""

    __slots__ = ("_alone", "_known")

    def __init__(self, alone: Alone) -> None:
        self._alone = alone
        self._known: dict[tuple[object, ...], Part] = {}

    @property
    def all(self) -> tuple[Part, ...]:
        """What was simulated, each once."""
        return tuple(self._known.values())

    def of(self, program: CostedProgram) -> Iterator[tuple[Call, Part]]:
        """What a lane runs one after another: its calls, and in between what is not called."""
        segments = program.segments
        parts = {each.name: self._part(each.name, each.body, program) for each in segments}
        for are_calls, ops in groupby(program.body, lambda op: isinstance(op, Call)):
            if are_calls:
                yield from _calls(ops, parts)
            else:
                plain = tuple(op for op in ops if not isinstance(op, Call))
                part = self._part(program.name, plain, program)
                yield Call(name=plain[0].name, segment=part.name, microbatch=0), part

    def _part(self, name: str, body: tuple[TaskOp, ...], program: CostedProgram) -> Part:
        key = (*map(id, body), program.links, program.torus)
        part = self._known.get(key)
        if part is None:
            alone = replace(program, name=name, body=body, resident=(), segments=(), host=())
            lane = self._alone(alone, _around(program, body))
            part = self._known[key] = _part(lane, first_phase(body))
        return part


def _calls(ops: Iterable[TopTask], parts: dict[str, Part]) -> Iterator[tuple[Call, Part]]:
    for op in ops:
        if isinstance(op, Call):
            if op.segment not in parts:
                raise ValueError(f"call {op.name!r} runs {op.segment!r}, which is no segment")
            yield op, parts[op.segment]


def _around(program: CostedProgram, body: Sequence[TaskOp]) -> Surroundings:
    """What parts of a lane take that this one frees, and the names of the tasks of all."""
    tasks = list(_tasks(program.body))
    for segment in program.segments:
        tasks += _tasks(segment.body)
    freed = {tensor for task in _tasks(body) for tensor in task.frees}
    taken = {a.tensor: a for task in tasks for a in task.allocs if a.tensor in freed}
    return Surroundings(tuple(taken.values()), frozenset(task.name for task in tasks))


def _tasks(body: Sequence[TopTask]) -> Iterator[Task]:
    for op in body:
        if isinstance(op, TaskLoop):
            yield from _tasks(op.body)
        elif isinstance(op, Task):
            yield op


def _part(lane: Lane, phase: Phase) -> Part:
    """What a lane has done that ran to its end."""
    code, journal = lane.code, lane.journal
    tasks = tuple(flat(journal.tasks))
    return Part(
        name=code.name,
        phase=phase,
        duration_ps=lane.end_ps,
        tasks=tasks,
        waits=tuple(entry for entry in flat(journal.waits) if entry[0][1] < entry[0][2]),
        volumes=volumes(tasks, code.first_link, len(code.links)),
        profile=profile_of(code, journal.changes),
        lane=lane,
    )


def volumes(tasks: Spans, first_link: int, links: int) -> tuple[int, ...]:
    """Nanobytes that tasks put on each link."""
    found = [0] * links
    for (step, _, _), levels in tasks:
        moved = step.volume * times(levels)
        for link, weight in step.uses:
            found[link - first_link] += weight * moved
    return tuple(found)
