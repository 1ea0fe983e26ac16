"""From the lanes of a pipeline to the code of their parts, and the row in which each runs them.

A part of a lane is a segment, or the operations between calls. It runs alone: when it begins
nothing is in flight, and it is over when its transfers have drained. Parts that are the same
objects in several lanes are compiled once. The result holds all numbers of a step, and its rows
have none: they follow from the schedule.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tpusim.base.phase import Phase
from tpusim.costs import CostedProgram, MessageTask, Task, TaskLoop, TaskOp, TopTask, first_phase
from tpusim.engine.clock import nanobytes_per_ps
from tpusim.engine.compile_lane import EnclosingLane, compile_lane
from tpusim.engine.instructions import LaneCode, TaskStep
from tpusim.engine.lane import StalledError
from tpusim.program import Alloc, Call, Number, Send


@dataclass(frozen=True, slots=True, eq=False)
class PartCode:
    """A part of a lane; `phase` is that of its first task."""

    code: LaneCode
    phase: Phase


class StageRun(NamedTuple):
    """One run of a part.

    call: name of the call.
    part: index of the part.
    awaits: messages that must have arrived before.
    sends: messages that leave when it is done, each with the index of its step among the lane's.
    """

    call: str
    part: int
    awaits: tuple[str, ...] = ()
    sends: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageCode:
    """A lane that runs parts.

    runs: one after another.
    calls: the parts that it runs, each with the positions of its runs.
    messages: steps of its messages, each with the lane that receives them.
    links: name and rate (nB/ps) of each link.
    host: tasks of the host beside the lane.
    """

    name: str
    runs: tuple[StageRun, ...]
    calls: tuple[tuple[int, tuple[int, ...]], ...]
    messages: tuple[tuple[int, TaskStep], ...]
    links: tuple[tuple[str, int], ...]
    resident: tuple[Alloc, ...]
    host: tuple[TaskStep, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PipelineCode:
    """The lanes of a pipeline.

    order: all runs with their lanes, in an order in which each message is sent before it is
        awaited.
    """

    parts: tuple[PartCode, ...]
    stages: tuple[StageCode, ...]
    order: tuple[tuple[int, StageRun], ...]

    def with_numbers(
        self, codes: Sequence[LaneCode], lanes: Sequence[CostedProgram]
    ) -> "PipelineCode":
        """Return the pipeline with other numbers in its parts and messages.

        codes: of the parts, in order.
        lanes: with the messages of the stages, in order.
        """
        messages = _MessageSteps(len(lanes))
        return PipelineCode(
            parts=tuple(
                PartCode(code, part.phase) for part, code in zip(self.parts, codes, strict=True)
            ),
            stages=tuple(
                replace(stage, messages=messages.of(lane))
                for stage, lane in zip(self.stages, lanes, strict=True)
            ),
            order=self.order,
        )


def has_calls(lanes: Sequence[CostedProgram]) -> bool:
    """Return True if any lane calls segments."""
    return any(isinstance(op, Call) for lane in lanes for op in lane.body)


def compile_pipeline(lanes: Sequence[CostedProgram]) -> PipelineCode:
    """Return the code of lanes that call segments.

    Raise ValueError for calls of segments and messages to lanes that do not exist, and for a
    message that is sent twice; StalledError for calls that wait for each other in a circle.
    """
    parts, messages = _LaneParts(), _MessageSteps(len(lanes))
    stages = tuple(_stage(lane, parts.of(lane), messages) for lane in lanes)
    return PipelineCode(parts=tuple(parts.codes), stages=stages, order=tuple(_order(stages)))


def _stage(
    lane: CostedProgram, row: Sequence[tuple[Call, int]], messages: "_MessageSteps"
) -> StageCode:
    sent = _SentMessages(lane.messages)
    positions: dict[int, list[int]] = {}
    for at, (_, part) in enumerate(row):
        positions.setdefault(part, []).append(at)
    host = compile_lane(_alone(lane, (), host=lane.host)).host if lane.host else ()
    return StageCode(
        name=lane.name,
        runs=tuple(
            StageRun(
                call.name,
                part,
                call.awaits,
                tuple((send.message, sent.index(call, send)) for send in call.sends),
            )
            for call, part in row
        ),
        calls=tuple((part, tuple(at)) for part, at in positions.items()),
        messages=messages.of(lane),
        links=tuple((name, nanobytes_per_ps(float(rate))) for name, rate in lane.links),
        resident=lane.resident,
        host=host,
    )


def _alone(
    lane: CostedProgram, body: tuple[TaskOp, ...], name: str = "", host: tuple[Task, ...] = ()
) -> CostedProgram:
    """Return a lane with these tasks alone."""
    name = name or lane.name
    return replace(lane, name=name, body=body, host=host, resident=(), segments=(), messages=())


def _order(stages: Sequence[StageCode]) -> Iterator[tuple[int, StageRun]]:
    """Yield all runs with their lanes; each lane goes on until it needs what has not been sent."""
    done, sent = [0] * len(stages), set[str]()
    waiting: dict[str, list[int]] = {}
    ready = deque(range(len(stages)))
    while ready:
        lane = ready.popleft()
        runs = stages[lane].runs
        while done[lane] < len(runs):
            run = runs[done[lane]]
            missing = _missing(run, sent)
            if missing:
                waiting.setdefault(missing, []).append(lane)
                break
            yield lane, run
            done[lane] += 1
            for message, _ in run.sends:
                if message in sent:
                    raise ValueError(f"call {run.call!r} sends {message!r}, which has been sent")
                sent.add(message)
                ready.extend(waiting.pop(message, ()))
    stuck = [
        f"lane {stages[lane].name!r} waits before {stages[lane].runs[done[lane]].call} for "
        f"{message!r}"
        for message, lanes in waiting.items()
        for lane in lanes
    ]
    if stuck:
        raise StalledError(f"nothing is left to happen, but {'; '.join(stuck)}")


def _missing(run: StageRun, sent: set[str]) -> str | None:
    """Return the first message that a run awaits and that has not been sent."""
    for message in run.awaits:
        if message not in sent:
            return message
    return None


class _SentMessages:
    """The messages of one lane, by their segment, their receiver and their bytes."""

    def __init__(self, messages: Sequence[MessageTask]) -> None:
        self._places: dict[tuple[str, int, Number], int] = {}
        for at, sent in enumerate(messages):
            self._places.setdefault((sent.segment, sent.to, sent.bytes), at)

    def index(self, call: Call, send: Send) -> int:
        """Return the index of the message that a call sends."""
        found = self._places.get((call.segment, send.to, send.bytes))
        if found is None:
            raise KeyError(f"call {call.name!r} sends {send.message!r}, which has no task")
        return found


class _MessageSteps:
    """The messages between lanes in integer units; one object of several lanes is one step."""

    __slots__ = ("_lanes", "_steps")

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes
        self._steps: dict[tuple[int, int], TaskStep] = {}

    def of(self, lane: CostedProgram) -> tuple[tuple[int, TaskStep], ...]:
        """Return the steps of a lane's messages, each with its receiver."""
        for sent in lane.messages:
            if not 0 <= sent.to < self._lanes:
                raise ValueError(f"lane {lane.name!r} sends to lane {sent.to} of {self._lanes}")
        return tuple((sent.to, self._step(sent.task, lane)) for sent in lane.messages)

    def _step(self, task: Task, lane: CostedProgram) -> TaskStep:
        key = id(task), id(lane.links)
        found = self._steps.get(key)
        if found is None:
            found = self._steps[key] = compile_lane(_alone(lane, (task,))).steps[0]
        return found


class _PartBody(NamedTuple):
    """Operations that run alone, with tensors that they take, or free of others."""

    ops: tuple[TaskOp, ...]
    taken: dict[str, Alloc]
    foreign: tuple[str, ...]
    names: tuple[str, ...]


@dataclass(slots=True)
class _LaneParts:
    """The parts of several lanes; those that are the same objects in several are compiled once."""

    codes: list[PartCode] = field(default_factory=list)
    _bodies: dict[tuple[int, ...], _PartBody] = field(default_factory=dict)
    _known: dict[tuple[object, ...], list[tuple[tuple[Number, ...], int]]] = field(
        default_factory=dict
    )
    _lanes: dict[tuple[object, ...], list[int]] = field(default_factory=dict)

    def of(self, program: CostedProgram) -> list[tuple[Call, int]]:
        """Return the runs of a lane, one after another: its calls, and operations in between.

        Each has the index of its part among `codes`.
        """
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

    def _lane(self, named: Sequence[tuple[str, _PartBody]], program: CostedProgram) -> list[int]:
        """Return the parts of a lane that has these bodies; those of lanes alike are found once."""
        key = (*(id(body) for _, body in named), program.links, program.torus)
        found = self._lanes.get(key)
        if found is None:
            bodies = [body for _, body in named]
            found = [self._part(name, body, bodies, program) for name, body in named]
            self._lanes[key] = found
        return found

    def _body(self, ops: tuple[TaskOp, ...]) -> _PartBody:
        key = tuple(map(id, ops))
        found = self._bodies.get(key)
        if found is None:
            tasks = list(_flat_tasks(ops))
            taken = {alloc.tensor: alloc for task in tasks for alloc in task.allocs}
            foreign = {name: None for task in tasks for name in task.frees if name not in taken}
            names = tuple(task.name for task in tasks if isinstance(task, Task))
            found = self._bodies[key] = _PartBody(ops, taken, tuple(foreign), names)
        return found

    def _part(
        self, name: str, body: _PartBody, bodies: Sequence[_PartBody], program: CostedProgram
    ) -> int:
        """Return the index of a part; `bodies` are those of its lane."""
        given = [_first_alloc(tensor, bodies) for tensor in body.foreign]
        taken = tuple(alloc for alloc in given if alloc)
        sizes = tuple(alloc.bytes for alloc in taken)
        places = tuple(at for at, alloc in enumerate(given) if alloc)
        key = (*map(id, body.ops), places, program.links, program.torus)
        known = self._known.setdefault(key, [])
        for others, index in known:
            if sizes == others:
                return index
        names = frozenset(name for each in bodies for name in each.names)
        code = compile_lane(_alone(program, body.ops, name), enclosing=EnclosingLane(taken, names))
        self.codes.append(PartCode(code, first_phase(body.ops)))
        known.append((sizes, len(self.codes) - 1))
        return len(self.codes) - 1


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


def _flat_tasks(body: Sequence[TaskOp]) -> Iterator[TaskOp]:
    """Yield the tasks and the loops of a body, and those within loops."""
    for op in body:
        yield op
        if isinstance(op, TaskLoop):
            yield from _flat_tasks(op.body)
