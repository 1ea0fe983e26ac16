"""A part of a lane that runs alone: the same each time, so it is simulated once.

It is a segment, or the operations that stand between calls. When it begins nothing is in flight,
and it is over when its transfers have drained, so each run of it is like the first.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from tpusim.costs.tasks import CostedProgram, Task, TaskLoop, TaskOp, TopTask, first_phase
from tpusim.engine.code import ON_CORE
from tpusim.engine.compile import Surroundings
from tpusim.engine.journal import Level, Span, flat, times
from tpusim.engine.lane import Lane
from tpusim.engine.memory import Profile, profile_of
from tpusim.engine.timeline import CoreTime
from tpusim.phase import Phase
from tpusim.program import Alloc, Call

Alone: TypeAlias = Callable[[CostedProgram, Surroundings], Lane]
"""Runs the tasks of a part to their end."""

Spans: TypeAlias = tuple[tuple[Span, tuple[Level, ...]], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What one run of a part does, from time 0.

    tasks, waits: with their levels of repetition. core: what the core's tasks sum to. volumes: the
    lane's links that are used, by index, with nanobytes.
    """

    name: str
    phase: Phase
    duration_ps: int
    tasks: Spans
    waits: Spans
    core: CoreTime
    volumes: tuple[tuple[int, int], ...]
    profile: Profile
    lane: Lane


class _Body(NamedTuple):
    """Operations that run alone: what they take, what others take that they free, their names."""

    ops: tuple[TaskOp, ...]
    taken: dict[str, Alloc]
    foreign: tuple[str, ...]
    names: tuple[str, ...]


class Parts:
    """The parts of several lanes; those that are the same objects in several are run once."""

    __slots__ = ("_alone", "_bodies", "_known", "_lanes")

    def __init__(self, alone: Alone) -> None:
        self._alone = alone
        self._bodies: dict[tuple[int, ...], _Body] = {}
        self._known: dict[tuple[object, ...], Part] = {}
        self._lanes: dict[tuple[object, ...], list[Part]] = {}

    @property
    def all(self) -> tuple[Part, ...]:
        """What was simulated, each once."""
        return tuple(self._known.values())

    def of(self, program: CostedProgram) -> list[tuple[Call, Part]]:
        """What a lane runs one after another: its calls, and in between what is not called."""
        bodies = {each.name: self._body(each.body) for each in program.segments}
        row = list(_row(program.body))
        plain = [self._body(ops) for ops in row if not isinstance(ops, Call)]
        made = self._lane([*bodies.items(), *((program.name, body) for body in plain)], program)
        parts, others = dict(zip(bodies, made, strict=False)), iter(made[len(bodies) :])
        try:
            return [
                (op, parts[op.segment]) if isinstance(op, Call) else (_call(op), next(others))
                for op in row
            ]
        except KeyError as error:
            raise ValueError(f"a call runs {error.args[0]!r}, which is no segment") from None

    def _lane(self, named: Sequence[tuple[str, _Body]], program: CostedProgram) -> list[Part]:
        """The parts of a lane that has these bodies; those of lanes alike are found once."""
        key = (*(id(body) for _, body in named), program.links, program.torus)
        found = self._lanes.get(key)
        if found is None:
            bodies = [body for _, body in named]
            found = [self._part(name, body, bodies, program) for name, body in named]
            self._lanes[key] = found
        return found

    def _body(self, ops: tuple[TaskOp, ...]) -> _Body:
        key = tuple(map(id, ops))
        found = self._bodies.get(key)
        if found is None:
            tasks = list(_tasks(ops))
            taken = {alloc.tensor: alloc for task in tasks for alloc in task.allocs}
            foreign = {name: None for task in tasks for name in task.frees if name not in taken}
            names = tuple(task.name for task in tasks)
            found = self._bodies[key] = _Body(ops, taken, tuple(foreign), names)
        return found

    def _part(
        self, name: str, body: _Body, bodies: Sequence[_Body], program: CostedProgram
    ) -> Part:
        taken = tuple(_taken(tensor, bodies) for tensor in body.foreign)
        sizes = (float(alloc.bytes) if alloc else None for alloc in taken)
        key = (*map(id, body.ops), *sizes, program.links, program.torus)
        part = self._known.get(key)
        if part is None:
            names = frozenset(name for each in bodies for name in each.names)
            around = Surroundings(tuple(alloc for alloc in taken if alloc), names)
            alone = replace(
                program, name=name, body=body.ops, resident=(), segments=(), host=(), ways=()
            )
            phase = first_phase(body.ops)
            part = self._known[key] = _part(self._alone(alone, around), phase)
        return part


def _row(body: Sequence[TopTask]) -> Iterator[Call | tuple[TaskOp, ...]]:
    """The calls of a body, and what stands between them."""
    plain: list[TaskOp] = []
    for op in body:
        if isinstance(op, Call):
            if plain:
                yield tuple(plain)
                plain = []
            yield op
        else:
            plain.append(op)
    if plain:
        yield tuple(plain)


def _call(ops: Sequence[TaskOp]) -> Call:
    """The run of what stands between calls, as a call of its own."""
    return Call(name=ops[0].name, segment="", microbatch=0)


def _taken(tensor: str, bodies: Sequence[_Body]) -> Alloc | None:
    """The first allocation of a tensor in any of the bodies."""
    return next((each.taken[tensor] for each in bodies if tensor in each.taken), None)


def _tasks(body: Sequence[TaskOp]) -> Iterator[Task]:
    for op in body:
        if isinstance(op, TaskLoop):
            yield from _tasks(op.body)
        else:
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
        core=_core_time(tasks),
        waits=tuple(entry for entry in flat(journal.waits) if entry[0][1] < entry[0][2]),
        volumes=tuple(
            (link, volume)
            for link, volume in enumerate(volumes(tasks, code.first_link, len(code.links)))
            if volume
        ),
        profile=profile_of(code, journal.changes),
        lane=lane,
    )


def _core_time(tasks: Spans) -> CoreTime:
    """Picoseconds of the core's tasks by label and phase."""
    found: Counter[tuple[str, Phase]] = Counter()
    for (step, start, end), levels in tasks:
        if step.stream == ON_CORE:
            found[step.task.label, step.task.phase] += (end - start) * times(levels)
    return found


def volumes(tasks: Spans, first_link: int, links: int) -> tuple[int, ...]:
    """Nanobytes that tasks put on each link."""
    found = [0] * links
    for (step, _, _), levels in tasks:
        moved = step.volume * times(levels)
        for link, weight in step.uses:
            found[link - first_link] += weight * moved
    return tuple(found)
