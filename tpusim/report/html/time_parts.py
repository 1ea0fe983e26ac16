"""Where the time goes: the step in parts, by kind, layer, operation, line and mesh axis.

Each view is a partition of the core's time, so each sums to the step to the picosecond.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tpusim.base.phase import Phase
from tpusim.program import Program, walk_ops
from tpusim.report.figures.time_windows import loop_words, outer_loops
from tpusim.results import (
    EXPOSED,
    Result,
    operation_of,
)
from tpusim.results.lines import operation_records
from tpusim.results.result import label_of

MOST_PARTS = 40
"""Parts of a view that are listed; the rest are one."""

OUTSIDE = "outside the loops"
COMPUTE = "compute and waits without an axis"


class TimeCell(NamedTuple):
    """What the core's time is attributed to.

    label: the kind of work, or `exposed ...`, as in a breakdown.
    loop: an iteration of the outermost loop in words; `OUTSIDE` without one.
    line: of the user's code; else the scope, or the label.
    """

    label: str
    phase: Phase
    loop: str
    operation: str
    line: str


@dataclass(frozen=True, slots=True)
class TimePart:
    """A part of the step.

    picoseconds: the mean of all cores.
    about: its own largest parts, name and picoseconds.
    """

    name: str
    picoseconds: float
    about: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TimeView:
    """The step in parts, the longest first.

    key: of the view in the page.
    """

    key: str
    title: str
    parts: tuple[TimePart, ...]


def time_views(result: Result) -> list[TimeView]:
    """Return the step by kind, layer, operation, line and mesh axis."""
    cells = time_cells(result)
    return [
        _view("kind", "By kind", cells, lambda c: c.label, lambda c: f"{c.operation}, {c.phase}"),
        _view("layer", "By layer", cells, lambda c: c.loop, lambda c: c.label),
        _view("operation", "By operation", cells, lambda c: c.operation, _kind_and_phase),
        _view("line", "By line or scope", cells, lambda c: c.line, _kind_and_phase),
        _view("axis", "By mesh axis", cells, _axis, lambda c: f"{c.operation}, {c.phase}"),
    ]


def time_cells(result: Result) -> Mapping[TimeCell, float]:
    """Return the core's picoseconds by cell, the mean of all cores; they sum to the step."""
    cells: Counter[TimeCell] = Counter()
    timeline = result.timeline
    loops = [dict(_loops(result.program_of(lane))) for lane in range(len(timeline.lanes))]
    for record, op, picoseconds in operation_records(result):
        label = label_of(record.label)
        line = (getattr(op, "source", "") or op.scope) if op is not None else ""
        cell = TimeCell(
            label,
            record.phase,
            loops[record.lane].get(operation_of(record), OUTSIDE),
            result.called(op) if op is not None else record.name,
            line or label,
        )
        cells[cell] += picoseconds
    return {cell: ps / timeline.core_count for cell, ps in cells.items() if ps}


def _loops(program: Program) -> Iterator[tuple[str, str]]:
    """Yield the operations in loops, and an iteration of their outermost loop in words."""
    for body in (program.body, *(segment.body for segment in program.segments)):
        for loop in outer_loops(body):
            ops = [op for op, _ in walk_ops(loop.body)]
            if ops:
                words = loop_words(loop.name, {op.phase for op in ops})
                title = f"{words}, {loop.trips} times" if loop.trips > 1 else words
                yield from ((op.name, title) for op in ops)


def _axis(cell: TimeCell) -> str:
    exposed = cell.label.startswith(EXPOSED)
    return cell.label.removeprefix(EXPOSED) if exposed else COMPUTE


def _kind_and_phase(cell: TimeCell) -> str:
    return f"{cell.label}, {cell.phase}"


def _view(
    key: str,
    title: str,
    cells: Mapping[TimeCell, float],
    name: Callable[[TimeCell], str],
    inner: Callable[[TimeCell], str],
) -> TimeView:
    """Return the cells grouped by `name`, and each group by `inner`."""
    groups: dict[str, Counter[str]] = {}
    for cell, ps in cells.items():
        groups.setdefault(name(cell), Counter())[inner(cell)] += ps  # type: ignore[assignment]
    parts = [
        TimePart(group, sum(inside.values()), _largest(inside)) for group, inside in groups.items()
    ]
    return TimeView(key, title, _shortened(sorted(parts, key=_order)))


def _order(part: TimePart) -> tuple[bool, float, str]:
    """Return the place of a part: work before what is exposed, the longest first."""
    return (part.name.startswith(EXPOSED), -part.picoseconds, part.name)


def _largest(inside: Counter[str]) -> tuple[tuple[str, float], ...]:
    ranked = inside.most_common()
    shown, rest = ranked[:MOST_PARTS], ranked[MOST_PARTS:]
    more = [(f"{len(rest):,} others", float(sum(ps for _, ps in rest)))] if rest else []
    return (*((each, float(ps)) for each, ps in shown), *more)


def _shortened(parts: Sequence[TimePart]) -> tuple[TimePart, ...]:
    if len(parts) <= MOST_PARTS:
        return tuple(parts)
    shown = sorted(parts, key=lambda part: -part.picoseconds)
    rest = shown[MOST_PARTS:]
    others = TimePart(f"{len(rest):,} others", sum(part.picoseconds for part in rest))
    return (*shown[:MOST_PARTS], others)
