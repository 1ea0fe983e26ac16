"""A part of a lane that runs alone: the same each time, so it is simulated once.

It is a segment, or the operations between calls. When it begins nothing is in flight, and it is
over when its transfers have drained, so each run of it is like the first.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from tpusim.base.phase import Phase
from tpusim.costs import CostedProgram, Task, TaskLoop, TaskOp, TopTask, first_phase
from tpusim.engine.compile_lane import EnclosingLane
from tpusim.engine.instructions import ON_CORE
from tpusim.engine.journal import Level, TimedStep, flatten, repeat_count
from tpusim.engine.lane import Lane
from tpusim.engine.memory import MemoryProfile, memory_profile
from tpusim.engine.timeline import CoreTime
from tpusim.program import Alloc, Call

RunAlone: TypeAlias = Callable[[CostedProgram, EnclosingLane], Lane]
"""Runs the tasks of a part to their end."""

RepeatedStep: TypeAlias = tuple[TimedStep, tuple[Level, ...]]
RepeatedSteps: TypeAlias = tuple[RepeatedStep, ...]


@dataclass(frozen=True, slots=True, eq=False)
class LanePart:
    """One run of a part, from time 0.

    tasks, waits: with their levels of repetition.
    core: the sum of the core's tasks.
    link_volumes: the lane's links that are used, by index, with nanobytes.
    """

    name: str
    phase: Phase
    duration_ps: int
    tasks: RepeatedSteps
    waits: RepeatedSteps
    core: CoreTime
    link_volumes: tuple[tuple[int, int], ...]
    profile: MemoryProfile
    lane: Lane


class _PartBody(NamedTuple):
    """Operations that run alone, with tensors that they take, or free of others."""

    ops: tuple[TaskOp, ...]
    taken: dict[str, Alloc]
    foreign: tuple[str, ...]
    names: tuple[str, ...]


class LaneParts:
    """The parts of several lanes; those that are the same objects in several are run once."""

    __slots__ = ("_bodies", "_known", "_lanes", "_run_alone")

    def __init__(self, run_alone: RunAlone) -> None:
        self._run_alone = run_alone
        self._bodies: dict[tuple[int, ...], _PartBody] = {}
        self._known: dict[tuple[object, ...], LanePart] = {}
        self._lanes: dict[tuple[object, ...], list[LanePart]] = {}

    @property
    def all(self) -> tuple[LanePart, ...]:
        """The parts that were simulated, each once."""
        return tuple(self._known.values())

    def of(self, program: CostedProgram) -> list[tuple[Call, LanePart]]:
        """Return the runs of a lane, one after another: its calls, and operations in between."""
        bodies = {each.name: self._body(each.body) for each in program.segments}
        row = list(_calls_and_bodies(program.body))
        plain = [self._body(ops) for ops in row if not isinstance(ops, Call)]
        made = self._lane([*bodies.items(), *((program.name, body) for body in plain)], program)
        parts, others = dict(zip(bodies, made, strict=False)), iter(made[len(bodies) :])
        unknown = next((op for op in row if isinstance(op, Call) and op.segment not in parts), None)
        if unknown is not None:
            raise ValueError(f"a call runs {unknown.segment!r}, which is no segment")
        return [
            (op, parts[op.segment]) if isinstance(op, Call) else (_as_call(op), next(others))
            for op in row
        ]

    def _lane(
        self, named: Sequence[tuple[str, _PartBody]], program: CostedProgram
    ) -> list[LanePart]:
        """Return the parts of a lane that has these bodies; those of lanes alike are found once."""
        key = (*(id(body) for _, body in named), program.links, program.torus)
        found = self._lanes.get(key)
        if found is None:
            bodies = [body for _, body in named]
            found = [self._lane_part(name, body, bodies, program) for name, body in named]
            self._lanes[key] = found
        return found

    def _body(self, ops: tuple[TaskOp, ...]) -> _PartBody:
        key = tuple(map(id, ops))
        found = self._bodies.get(key)
        if found is None:
            tasks = list(_flat_tasks(ops))
            taken = {alloc.tensor: alloc for task in tasks for alloc in task.allocs}
            foreign = {name: None for task in tasks for name in task.frees if name not in taken}
            names = tuple(task.name for task in tasks)
            found = self._bodies[key] = _PartBody(ops, taken, tuple(foreign), names)
        return found

    def _lane_part(
        self, name: str, body: _PartBody, bodies: Sequence[_PartBody], program: CostedProgram
    ) -> LanePart:
        taken = tuple(_first_alloc(tensor, bodies) for tensor in body.foreign)
        sizes = (float(alloc.bytes) if alloc else None for alloc in taken)
        key = (*map(id, body.ops), *sizes, program.links, program.torus)
        part = self._known.get(key)
        if part is None:
            names = frozenset(name for each in bodies for name in each.names)
            enclosing = EnclosingLane(tuple(alloc for alloc in taken if alloc), names)
            alone = replace(
                program, name=name, body=body.ops, resident=(), segments=(), host=(), messages=()
            )
            phase = first_phase(body.ops)
            part = self._known[key] = _lane_part(self._run_alone(alone, enclosing), phase)
        return part


def _calls_and_bodies(body: Sequence[TopTask]) -> Iterator[Call | tuple[TaskOp, ...]]:
    """Yield the calls of a body, and the operations between them."""
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


def _as_call(ops: Sequence[TaskOp]) -> Call:
    """Return the run of the operations between calls, as a call of its own."""
    return Call(name=ops[0].name, segment="", microbatch=0)


def _first_alloc(tensor: str, bodies: Sequence[_PartBody]) -> Alloc | None:
    """Return the first allocation of a tensor in any of the bodies."""
    return next((each.taken[tensor] for each in bodies if tensor in each.taken), None)


def _flat_tasks(body: Sequence[TaskOp]) -> Iterator[Task]:
    for op in body:
        if isinstance(op, TaskLoop):
            yield from _flat_tasks(op.body)
        else:
            yield op


def _lane_part(lane: Lane, phase: Phase) -> LanePart:
    """Return the part that a lane has run to its end."""
    code, journal = lane.code, lane.journal
    tasks = tuple(flatten(journal.tasks))
    return LanePart(
        name=code.name,
        phase=phase,
        duration_ps=lane.end_ps,
        tasks=tasks,
        core=core_time_of(tasks),
        waits=tuple(entry for entry in flatten(journal.waits) if entry[0][1] < entry[0][2]),
        link_volumes=tuple(
            (link, volume)
            for link, volume in enumerate(link_volumes(tasks, code.first_link, len(code.links)))
            if volume
        ),
        profile=memory_profile(code, journal.changes),
        lane=lane,
    )


def core_time_of(tasks: Iterable[RepeatedStep]) -> CoreTime:
    """Return the picoseconds of the core's tasks by label and phase."""
    found: Counter[tuple[str, Phase]] = Counter()
    for (step, start, end), levels in tasks:
        if step.stream == ON_CORE:
            found[step.task.label, step.task.phase] += (end - start) * repeat_count(levels)
    return found


def link_volumes(tasks: RepeatedSteps, first_link: int, links: int) -> tuple[int, ...]:
    """Return the nanobytes of tasks on each link."""
    found = [0] * links
    for (step, _, _), levels in tasks:
        moved = step.volume * repeat_count(levels)
        for link, weight in step.uses:
            found[link - first_link] += weight * moved
    return tuple(found)
