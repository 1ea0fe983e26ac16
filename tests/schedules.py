"""A schedule without an engine: the time of each slot in closed form, and its chart.

A slot starts when its stage is free and its operands have arrived.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from tpusim.program import CHART_COLUMNS, CHART_MARGIN, PassKind, Schedule, Slot

_BUBBLE_CELL = "."
_CUT = "…"

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
