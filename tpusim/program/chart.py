"""A pipeline's schedule as a chart: a row a stage, a column a unit of time."""

from collections.abc import Iterable, Sequence

from tpusim.program.schedule import Schedule
from tpusim.program.timing import Timed, timed, unit_times

COLUMNS = 100
MARGIN = 5
BUBBLE = "."
CUT = "…"


def chart(schedule: Schedule, columns: int = COLUMNS) -> str:
    """When each stage runs which slot in unit times and with free transfers, dots for bubbles.

    A forward pass takes one column and a backward pass two, or one where the gradients of the
    weights, one column too, are slots of their own. Slots stand apart where there is room; what is
    beyond `columns` characters is cut.
    Raises StuckError for a schedule that does not come to its end.
    """
    slots = timed(schedule, unit_times(schedule))
    end = max((slot.end for slot in slots), default=0)
    width = max((len(str(slot.slot)) for slot in slots), default=0)
    width += end * (width + 1) + MARGIN <= columns
    rows = [_row(stage, slots, end, width) for stage in range(schedule.stages)]
    return "\n".join([_head(schedule, slots, end), *(_cut(row, columns) for row in rows)])


def _head(schedule: Schedule, slots: tuple[Timed, ...], end: int) -> str:
    busy = sum(slot.end - slot.start for slot in slots)
    idle = 1 - busy / (end * schedule.stages) if end else 0.0
    chunks = f", {schedule.chunks} chunks" if schedule.chunks > 1 else ""
    return (
        f"{schedule.name}: {schedule.stages} stages{chunks}, "
        f"{schedule.microbatches} microbatches, {idle:.1%} bubble"
    )


def _row(stage: int, slots: tuple[Timed, ...], end: int, width: int) -> str:
    cells = [BUBBLE] * end
    for slot in slots:
        if slot.stage == stage:
            cells[slot.start : slot.end] = [str(slot.slot), *"-" * (slot.end - slot.start - 1)]
    return f"{stage:>{MARGIN - 2}}  " + "".join(cell.ljust(width) for cell in cells).rstrip()


def _cut(row: str, columns: int) -> str:
    return row if len(row) <= columns else row[: columns - 1] + CUT


def painted(
    rows: Sequence[Sequence[tuple[str, int, int]]], end: int, columns: int = COLUMNS
) -> list[str]:
    """A line for each row of (label, start, end), on a scale on which `end` fills the columns.

    Where most labels have room each stands that has, and of the others their first letter. Those of
    one letter fill their place.
    """
    wide = columns - MARGIN
    spans = [[(label, round(start / end * wide), round(last / end * wide))
              for label, start, last in parts] for parts in rows]  # fmt: skip
    fits = [last - first >= len(label) for parts in spans for label, first, last in parts
            if len(label) > 1]  # fmt: skip
    named = 2 * sum(fits) > len(fits)
    return [f"{row:>{MARGIN - 2}}  " + _painted(parts, wide, named)
            for row, parts in enumerate(spans)]  # fmt: skip


def _painted(parts: Iterable[tuple[str, int, int]], wide: int, named: bool) -> str:
    cells = [BUBBLE] * wide
    for label, first, last in parts:
        text = label if named and len(label) <= last - first else label[0]
        whole = text.ljust(last - first, text if len(label) == 1 else "-")
        cells[first:last] = whole[: last - first]
    return "".join(cells).rstrip(BUBBLE)
