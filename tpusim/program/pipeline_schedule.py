"""A pipeline's schedule: the passes of each stage in order, and charts of rows of labels."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

CHART_COLUMNS = 100
CHART_MARGIN = 5
"""Columns of the stage's number, at the left of a row."""

_BUBBLE_CELL = "."


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
