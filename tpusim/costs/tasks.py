"""A program with its costs: what the engine runs.

A task lasts `delay_s`, then moves `bytes` over the links that it `uses` for at least `work_s`:
alone, `delay_s + max(work_s, max over uses of bytes x weight / capacity)`. While it moves, it draws
at most `bytes / work_s` (no cap when `work_s` is 0), and shares each link fairly with the other
tasks that use it: those that contend slow down by the same factor. `weight` is what one byte of the
task puts on that link: collectives count in 64ths of what their busiest link carries.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tpusim.network.messages import Moves
from tpusim.program import Alloc, Call, Dep, Phase

CORE = "core"
ON_HOST = "host"
HBM = "hbm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One operation with its costs, in seconds and bytes.

    stream: `core`, the transfer stream that runs it beside the core, or `host`.
    label: what the breakdown calls its time (`matmul`, `attention`, `vector`, `fsdp`, ...).
    moves: what it moves over the torus, message by message; only the hop-by-hop network asks, as
    the messages of a big torus are many.
    """

    name: str
    phase: Phase
    label: str
    stream: str = CORE
    delay_s: float = 0.0
    work_s: float = 0.0
    bytes: float = 0.0
    uses: tuple[tuple[str, int], ...] = ()
    deps: tuple[Dep, ...] = ()
    allocs: tuple[Alloc, ...] = ()
    frees: tuple[str, ...] = ()
    moves: Callable[[], Moves] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLoop:
    """`trips` runs of `body`, in order."""

    name: str
    trips: int
    body: tuple["Task | TaskLoop", ...]


TaskOp: TypeAlias = Task | TaskLoop


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSegment:
    """The tasks of a segment: each call of it runs them all, and all are over before the next."""

    name: str
    body: tuple[TaskOp, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How `bytes` that a segment sends to lane `to` get there, on links that no task is on."""

    segment: str
    to: int
    bytes: float
    task: Task


TopTask: TypeAlias = TaskOp | Call
"""What a lane's own body is made of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostedProgram:
    """The tasks of one lane, the capacity (B/s) of each link they use, and what is resident.

    host: what the host does meanwhile, one task after another from the start: they have a delay
        alone, share nothing with the lane, and the step does not end before them.
    torus: chips along each dimension of the topology; the messages' links are numbered on it.
    segments: what the calls of the body run, and `ways` what they send; equal ones of several lanes
        are one object.
    """

    name: str
    body: tuple[TopTask, ...]
    links: tuple[tuple[str, float], ...]
    resident: tuple[Alloc, ...] = ()
    torus: tuple[int, ...] = ()
    host: tuple[Task, ...] = ()
    segments: tuple[TaskSegment, ...] = ()
    ways: tuple[Way, ...] = ()


def first_phase(body: Sequence[TaskOp]) -> Phase:
    """The phase of the first task of a body; that of an empty one is the forward pass."""
    for op in body:
        return first_phase(op.body) if isinstance(op, TaskLoop) else op.phase
    return Phase.FORWARD


def core_seconds(
    body: Sequence[TopTask], links: Mapping[str, float], segments: Sequence[TaskSegment] = ()
) -> float:
    """Seconds of all tasks of the core alone, one after another, those of calls too.

    No step is shorter: the core runs them in order, and what shares their links only slows them.
    """
    total = 0.0
    called = {segment.name: core_seconds(segment.body, links) for segment in segments}
    for op in body:
        if isinstance(op, Call):
            total += called[op.segment]
        elif isinstance(op, TaskLoop):
            total += op.trips * core_seconds(op.body, links)
        elif op.stream == CORE:
            total += alone_seconds(op, links)
    return total


def alone_seconds(task: Task, links: Mapping[str, float]) -> float:
    """Seconds of a task that shares its links with no other."""
    moving = max((task.bytes * weight / links[name] for name, weight in task.uses), default=0.0)
    return task.delay_s + max(task.work_s, moving)
