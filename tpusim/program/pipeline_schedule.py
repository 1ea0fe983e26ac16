"""A pipeline's schedule: the passes of each stage in order, their times, and a chart of them.

The times are the closed form of a pipeline: a slot starts when its stage is free and its operands
have arrived. No engine is asked: they draw schedules, and check the engine.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, TypeAlias

CHART_COLUMNS = 100
CHART_MARGIN = 5
"""Columns of the stage's number, at the left of a row."""

_BUBBLE_CELL = "."
_CUT = "…"


class PassKind(StrEnum):
    """The pass of a slot.

    BACKWARD makes the gradients of the input, and of the weights too unless the schedule has
    WEIGHTS slots, which make those.
    """

    FORWARD = "F"
    BACKWARD = "B"
    WEIGHTS = "W"


@dataclass(frozen=True, slots=True)
class Slot:
    """One pass of one microbatch through one chunk of a stage's layers.

    kind: forward, backward, or gradients of weights.
    microbatch: number of the microbatch.
    chunk: number of the chunk; 0, except for interleaved schedules, in which a stage has several:
        chunk c of stage s is the `c x stages + s`-th part of the model.
    """

    kind: PassKind
    microbatch: int
    chunk: int = 0

    def __str__(self) -> str:
        part = f".{self.chunk}" if self.chunk else ""
        return f"{self.kind}{self.microbatch}{part}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """The slots of each stage in order; a slot starts when its operands have arrived.

    chunks: parts of the model that each stage has.
    slots: slots of each stage.
    """

    name: str
    microbatches: int
    chunks: int
    slots: tuple[tuple[Slot, ...], ...]

    @property
    def stages(self) -> int:
        """The number of stages."""
        return len(self.slots)

    @property
    def splits(self) -> bool:
        """True if the gradients of the weights have slots of their own."""
        return any(slot.kind is PassKind.WEIGHTS for slots in self.slots for slot in slots)

    def operands(self, stage: int, slot: Slot) -> tuple[tuple[int, Slot], ...]:
        """Return the (stage, slot)s whose results a slot of a stage needs."""
        part, last = slot.chunk * self.stages + stage, self.chunks * self.stages - 1
        if slot.kind is PassKind.WEIGHTS:
            return (self._at(PassKind.BACKWARD, slot, part),)
        if slot.kind is PassKind.FORWARD:
            return (self._at(PassKind.FORWARD, slot, part - 1),) if part else ()
        ahead = (self._at(PassKind.BACKWARD, slot, part + 1),) if part < last else ()
        return (self._at(PassKind.FORWARD, slot, part), *ahead)

    def _at(self, kind: PassKind, slot: Slot, part: int) -> tuple[int, Slot]:
        """Return the stage and the slot of the same microbatch's pass through another part."""
        chunk, stage = divmod(part, self.stages)
        return stage, Slot(kind, slot.microbatch, chunk)

    def __str__(self) -> str:
        return chart(self)


SlotDuration: TypeAlias = Callable[[int, Slot], int]
"""The duration of a slot of a stage, or of the transfer of its result, in whole time units."""


class TimedSlot(NamedTuple):
    """A slot of a stage with its times."""

    stage: int
    slot: Slot
    start: int
    end: int


class StuckError(ValueError):
    """A schedule whose slots wait for each other in a circle, or for slots that do not exist."""


def unit_times(schedule: Schedule) -> SlotDuration:
    """Return durations of 1 for a forward pass and 2 for a backward pass.

    A backward pass takes 1 if the weights' gradients, which take 1, have slots of their own. A
    chunk of several takes as long: it is then a part of the model that is as much shorter.
    """
    backward = 1 if schedule.splits else 2
    return lambda stage, slot: backward if slot.kind is PassKind.BACKWARD else 1


def slot_times(
    schedule: Schedule, compute: SlotDuration, transfer: SlotDuration | None = None
) -> tuple[TimedSlot, ...]:
    """Return every slot with its times: stage by stage, in the order of its slots.

    compute: duration of a slot of a stage.
    transfer: duration of the transfer of its result to another stage that needs it; 0 if None.
        Results for one stage leave another one after another, in the order in which they are made.

    Raise StuckError, which names the slots, for a schedule that does not finish.
    """
    run = _ScheduleRun(schedule, compute, transfer or (lambda stage, slot: 0))
    while sum(run.advance(stage) for stage in range(schedule.stages)):
        pass
    ends = enumerate(zip(schedule.slots, run.done, strict=True))
    stuck = [
        f"stage {stage} before {slots[len(done)]}"
        for stage, (slots, done) in ends
        if len(done) < len(slots)
    ]
    if stuck:
        raise StuckError(f"schedule {schedule.name!r} comes to a halt: {', '.join(stuck)}")
    return tuple(slot for done in run.done for slot in done)


@dataclass(slots=True)
class _ScheduleRun:
    """The slots that each stage has run, and the times at which results arrive."""

    schedule: Schedule
    compute: SlotDuration
    transfer: SlotDuration
    done: list[list[TimedSlot]] = field(init=False)
    arrived: dict[tuple[int, Slot, int], int] = field(default_factory=dict)
    links: dict[tuple[int, int], int] = field(default_factory=dict)
    readers: dict[tuple[int, Slot], list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.done = [[] for _ in self.schedule.slots]
        for stage, slots in enumerate(self.schedule.slots):
            for slot in slots:
                for operand in self.schedule.operands(stage, slot):
                    self.readers.setdefault(operand, []).append(stage)

    def advance(self, stage: int) -> bool:
        """Run the slots of a stage up to the first that cannot start; return True if any ran."""
        slots, done = self.schedule.slots[stage], self.done[stage]
        before = len(done)
        for slot in slots[before:]:
            needs = [(*need, stage) for need in self.schedule.operands(stage, slot)]
            if not all(need in self.arrived for need in needs):
                break
            free = done[-1].end if done else 0
            start = max([free, *(self.arrived[need] for need in needs)])
            done.append(TimedSlot(stage, slot, start, start + self.compute(stage, slot)))
            self._pass_on(done[-1])
        return len(done) > before

    def _pass_on(self, made: TimedSlot) -> None:
        stage, slot = made.stage, made.slot
        self.arrived[stage, slot, stage] = made.end
        for reader in self.readers.get((stage, slot), ()):
            if reader != stage:
                leaves = max(made.end, self.links.get((stage, reader), 0))
                arrives = leaves + self.transfer(stage, slot)
                self.links[stage, reader] = self.arrived[stage, slot, reader] = arrives


def chart(schedule: Schedule) -> str:
    """Return a row per stage: its slots in unit times, with free transfers, and dots for bubbles.

    A forward pass takes one column and a backward pass two, or one if the gradients of the weights,
    one column too, have slots of their own. Slots are set apart if the width allows it; a row is
    cut after 100 characters.

    Raise StuckError for a schedule that does not finish.
    """
    slots = slot_times(schedule, unit_times(schedule))
    end = max((slot.end for slot in slots), default=0)
    width = max((len(str(slot.slot)) for slot in slots), default=0)
    width += end * (width + 1) + CHART_MARGIN <= CHART_COLUMNS
    rows = [_row(stage, slots, end, width) for stage in range(schedule.stages)]
    return "\n".join([_head(schedule, slots, end), *map(_cut, rows)])


def _head(schedule: Schedule, slots: tuple[TimedSlot, ...], end: int) -> str:
    busy = sum(slot.end - slot.start for slot in slots)
    idle = 1 - busy / (end * schedule.stages) if end else 0.0
    chunks = f", {schedule.chunks} chunks" if schedule.chunks > 1 else ""
    return (
        f"{schedule.name}: {schedule.stages} stages{chunks}, "
        f"{schedule.microbatches} microbatches, {idle:.1%} bubble"
    )


def _row(stage: int, slots: tuple[TimedSlot, ...], end: int, width: int) -> str:
    cells = [_BUBBLE_CELL] * end
    for slot in slots:
        if slot.stage == stage:
            cells[slot.start : slot.end] = [str(slot.slot), *"-" * (slot.end - slot.start - 1)]
    return f"{stage:>{CHART_MARGIN - 2}}  " + "".join(cell.ljust(width) for cell in cells).rstrip()


def _cut(row: str) -> str:
    return row if len(row) <= CHART_COLUMNS else row[: CHART_COLUMNS - 1] + _CUT


def chart_rows(
    rows: Sequence[Sequence[tuple[str, int, int]]], end: int, columns: int = CHART_COLUMNS
) -> list[str]:
    """Return a line for each row of (label, start, end), on a scale whose `end` fills the columns.

    If most labels fit, each that fits is written, and of the others their first letter. A label of
    one letter fills its span.
    """
    width = columns - CHART_MARGIN
    spans = [
        [
            (label, round(start / end * width), round(last / end * width))
            for label, start, last in row
        ]
        for row in rows
    ]
    long = [(label, last - first) for row in spans for label, first, last in row if len(label) > 1]
    named = 2 * sum(length >= len(label) for label, length in long) > len(long)
    return [
        f"{stage:>{CHART_MARGIN - 2}}  {_chart_row(row, width, named)}"
        for stage, row in enumerate(spans)
    ]


def _chart_row(parts: Iterable[tuple[str, int, int]], width: int, named: bool) -> str:
    cells = [_BUBBLE_CELL] * width
    for label, first, last in parts:
        text = label if named and len(label) <= last - first else label[0]
        whole = text.ljust(last - first, text if len(label) == 1 else "-")
        cells[first:last] = whole[: last - first]
    return "".join(cells).rstrip(_BUBBLE_CELL)
