"""A program with its costs: the input of the engine.

A task lasts `delay_s`, then moves `bytes` over the links that it `uses` for at least `work_s`:
alone, `delay_s + max(work_s, max over uses of bytes x weight / capacity)`. While it moves, it draws
at most `bytes / work_s` (no cap when `work_s` is 0), and shares each link fairly with the other
tasks that use it: those that contend slow down by the same factor. `weight` is what one byte of the
task puts on that link: collectives count in 64ths of what their busiest link carries.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tpusim.network import CollectiveMoves
from tpusim.program import Alloc, Call, Dep, Phase, largest

CORE, ON_HOST = "core", "host"
"""The streams of the core, and of the host's work beside the step."""

HBM = "hbm"
"""The name of the link between a device and its HBM."""

HOST_LABEL, DISPATCH, INPUT = "host", "dispatch", "input"
"""Labels of waits for transfers from or to the host, for the step's start, and for its batch."""

STRAGGLERS = "stragglers"
"""The label of waits for other devices to arrive at a collective, and for the last at the end."""

SKEW, WAIT_LABEL = "slice skew", "wait"
"""Labels of the barriers between slices, and of tasks of no length before which the core waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One operation with its costs, in seconds and bytes.

    delay_s: launch and hops, before bytes move.
    work_s: the least time in which its bytes move.
    bytes: bytes of one device on each link of weight 1.
    uses: link classes, each with the bytes that one byte of the task puts on it.
    stream: `core`, the transfer stream that runs it beside the core, or `host`.
    label: the name of its time in the breakdown (`matmul`, `attention`, `vector`, `fsdp`, ...).
    moves: makes its messages on the torus; a function, as a big torus has many and only the
        hop-by-hop network needs them.
    meets: of a transfer between devices, the mesh axes along which they are a group.
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
    moves: Callable[[], CollectiveMoves] | None = field(default=None, compare=False, repr=False)
    meets: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLoop:
    """`trips` runs of `body`, in order; `allocs` and `frees` as of a `Loop`."""

    name: str
    trips: int
    body: tuple["Task | TaskLoop", ...]
    allocs: tuple[Alloc, ...] = ()
    frees: tuple[str, ...] = ()


TaskOp: TypeAlias = Task | TaskLoop


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSegment:
    """The tasks of a segment; a call of it runs them all and ends before the next one begins."""

    name: str
    body: tuple[TaskOp, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageTask:
    """The task that carries `bytes` from a segment to lane `to`, on links that no other uses."""

    segment: str
    to: int
    bytes: float
    task: Task


TopTask: TypeAlias = TaskOp | Call
"""An operation of a lane's own body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostedProgram:
    """The tasks of one lane, the capacity (B/s) of each link they use, and what is resident.

    torus: chips along each dimension of the topology; the messages' links are numbered on it.
    host: tasks of the host during the step, one after another from its start. They have a delay
        alone and share nothing with the lane, and the step does not end before them.
    segments: bodies of the calls; equal ones of several lanes are one object.
    messages: the messages of the segments; equal ones of several lanes share their task.
    devices: devices that the lane stands for.
    groups: where devices differ, the number of the lane's group along the axes of each collective
        (`Task.meets`): lanes of one number begin and end such a collective together; else None.
    """

    name: str
    body: tuple[TopTask, ...]
    links: tuple[tuple[str, float], ...]
    resident: tuple[Alloc, ...] = ()
    torus: tuple[int, ...] = ()
    host: tuple[Task, ...] = ()
    segments: tuple[TaskSegment, ...] = ()
    messages: tuple[MessageTask, ...] = ()
    devices: int = 1
    groups: tuple[tuple[tuple[str, ...], int], ...] | None = None


def first_phase(body: Sequence[TaskOp]) -> Phase:
    """Return the phase of the first task of a body; an empty one belongs to the forward pass."""
    for op in body:
        return first_phase(op.body) if isinstance(op, TaskLoop) else op.phase
    return Phase.FORWARD


def core_seconds(
    body: Sequence[TopTask], links: Mapping[str, float], segments: Sequence[TaskSegment] = ()
) -> float:
    """Return the seconds of all tasks of the core, one after another, those of calls too.

    No step is shorter: the core runs them in order, and sharing links only slows them.
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


def _slowest_link_s(
    nbytes: float, uses: tuple[tuple[str, int], ...], links: Mapping[str, float]
) -> float:
    return max((nbytes * weight / links[name] for name, weight in uses), default=0.0)


def alone_seconds(task: Task, links: Mapping[str, float]) -> float:
    """Return the seconds of a task that shares its links with no other."""
    moving = _slowest_link_s(task.bytes, task.uses, links)
    return task.delay_s + largest(task.work_s, moving)
