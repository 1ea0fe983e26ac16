"""Lanes of a pipeline that follow a schedule, for the tests of the engine and its closed forms."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from fractions import Fraction

from schedules import TimedSlot, slot_times

from tpusim.costs import CostedProgram, MessageTask, Task, TaskSegment
from tpusim.engine import Timeline, run
from tpusim.program import (
    Alloc,
    Call,
    Compute,
    Dep,
    Flops,
    MatmulWork,
    PassKind,
    Phase,
    Program,
    Schedule,
    Segment,
    Send,
    Slot,
    VectorWork,
)

PS = 1e-12
Lasts = Callable[[int, Slot], int]
PHASES = {
    PassKind.FORWARD: Phase.FORWARD,
    PassKind.BACKWARD: Phase.BACKWARD,
    PassKind.WEIGHTS: Phase.BACKWARD,
}
LINKS = (("ici:x+", 1e12), ("hbm", 1e12))
HELD = 1000


def kinds(forward: int, backward: int, weights: int = 0) -> Lasts:
    """Times by kind of slot, alike on all stages."""
    times = {PassKind.FORWARD: forward, PassKind.BACKWARD: backward, PassKind.WEIGHTS: weights}
    return lambda stage, slot: times[slot.kind]


def segment_of(slot: Slot) -> str:
    return f"{slot.kind}.{slot.chunk}"


def calls_of(schedule: Schedule, stage: int) -> Iterator[Call]:
    """The calls of a stage: each result goes to the stages that need it, if it is another one."""
    readers: dict[tuple[int, Slot], list[int]] = {}
    for other, slots in enumerate(schedule.slots):
        for slot in slots:
            for operand in schedule.operands(other, slot):
                readers.setdefault(operand, []).append(other)
    for slot in schedule.slots[stage]:
        operands = schedule.operands(stage, slot)
        yield Call(
            name=str(slot),
            segment=segment_of(slot),
            microbatch=slot.microbatch,
            awaits=tuple(f"{other} of {at}" for at, other in operands if at != stage),
            sends=tuple(
                Send(message=f"{slot} of {stage}", to=to, axes=("stage",), bytes=8.0, dtype="bf16")
                for to in readers.get((stage, slot), ())
                if to != stage
            ),
        )


def lanes_of(schedule: Schedule, lasts: Lasts, travels: Lasts) -> tuple[CostedProgram, ...]:
    """A lane a stage, whose segments are single tasks; times depend on stage, kind and chunk.

    A forward segment takes `HELD` bytes, and the last slot of its microbatch and chunk frees them.
    """
    return tuple(lane_of(schedule, stage, lasts, travels) for stage in range(schedule.stages))


def lane_of(schedule: Schedule, stage: int, lasts: Lasts, travels: Lasts) -> CostedProgram:
    last = PassKind.WEIGHTS if schedule.splits else PassKind.BACKWARD
    slots = {segment_of(slot): slot for slot in schedule.slots[stage]}
    segments = []
    for name, slot in slots.items():
        held = f"held.{slot.chunk}"
        taken = (Alloc(held, HELD, "activations"),) if slot.kind is PassKind.FORWARD else ()
        freed = (held,) if slot.kind is last else ()
        task = Task(
            name=name, phase=PHASES[slot.kind], label="matmul", work_s=lasts(stage, slot) * PS,
            bytes=float(lasts(stage, slot) > 0), uses=(("hbm", 1),), allocs=taken, frees=freed,
        )  # fmt: skip
        segments.append(TaskSegment(name=name, body=(task,)))
    calls = tuple(calls_of(schedule, stage))
    ways = [
        MessageTask(
            segment=name, to=to, bytes=8.0, task=_message(name, to, travels(stage, slots[name]))
        )
        for name, to in dict.fromkeys((c.segment, send.to) for c in calls for send in c.sends)
    ]
    return CostedProgram(
        name=f"stage {stage}", body=calls, links=LINKS, segments=tuple(segments),
        messages=tuple(ways),
    )  # fmt: skip


def _message(segment: str, to: int, lasts: int) -> Task:
    return Task(
        name=f"{segment} to {to}", phase=Phase.FORWARD, label="stage", stream="ici:stage",
        delay_s=lasts * PS,
    )  # fmt: skip


def simulated(schedule: Schedule, lasts: Lasts, travels: Lasts | None = None) -> Timeline:
    return run(lanes_of(schedule, lasts, travels or (lambda stage, slot: 0)))


def calls_in(timeline: Timeline) -> set[tuple[int, str, int, int]]:
    """Lane, segment, start and end of each call."""
    return {
        (record.lane, record.name, start, start + record.duration_ps)
        for record in timeline.tasks
        if record.stream == "core"
        for start in record.starts()
    }


def slots_in(slots: tuple[TimedSlot, ...]) -> set[tuple[int, str, int, int]]:
    """The same of the closed form."""
    return {(each.stage, segment_of(each.slot), each.start, each.end) for each in slots}


def bubbles(schedule: Schedule, lasts: Lasts) -> list[int]:
    """How long each stage stands still between the start of its first slot and its last end."""
    found = []
    for stage in range(schedule.stages):
        slots = [each for each in slot_times(schedule, lasts) if each.stage == stage]
        work = sum(each.end - each.start for each in slots)
        found.append(slots[-1].end - slots[0].start - work)
    return found


def idle_share(schedule: Schedule, lasts: Lasts) -> Fraction:
    """The share of the step in which a stage does not work; stages must be alike."""
    slots = slot_times(schedule, lasts)
    total = max(each.end for each in slots)
    return 1 - Fraction(sum(each.end - each.start for each in slots), total * schedule.stages)


def programs_of(schedule: Schedule, axis: str = "stage", nbytes: float = 2.0**20) -> list[Program]:
    """A program a stage: segments of one product, which all stages share, then an update."""
    mesh = ((axis, schedule.stages),)
    segments = tuple(
        Segment(name=name, body=(_product(name, PHASES[slot.kind]),))
        for name, slot in {segment_of(slot): slot for slot in schedule.slots[0]}.items()
    )
    update = Compute(
        name="update",
        phase=Phase.OPTIMIZER,
        work=VectorWork(1e6, 1e6, 1e6),
        deps=(Dep("B.0 product"),),
    )
    return [
        Program(
            name=f"stage {stage}", axes=mesh, segments=segments,
            body=(*_over(calls_of(schedule, stage), axis, nbytes), update),
        )
        for stage in range(schedule.stages)
    ]  # fmt: skip


def _over(calls: Iterable[Call], axis: str, nbytes: float) -> Iterator[Call]:
    for call in calls:
        sends = (replace(send, axes=(axis,), bytes=nbytes) for send in call.sends)
        yield replace(call, sends=tuple(sends))


def _product(name: str, phase: Phase) -> Compute:
    work = MatmulWork(1, 1024, 4096, 4096, "bf16", 2e6, 2e6)
    return Compute(name=f"{name} product", phase=phase, work=work, flops=Flops(model=10))


def peak_alive(schedule: Schedule) -> tuple[int, ...]:
    """Return, for each stage, the most (microbatch, chunk)s between their first and last slot.

    The stage holds so many times the activations of one microbatch through one chunk.
    """
    return tuple(_peak(slots) for slots in schedule.slots)


def _peak(slots: tuple[Slot, ...]) -> int:
    last = {(slot.microbatch, slot.chunk): at for at, slot in enumerate(slots)}
    alive = top = 0
    for at, slot in enumerate(slots):
        alive += slot.kind is PassKind.FORWARD
        top = max(top, alive)
        alive -= last[slot.microbatch, slot.chunk] == at
    return top
