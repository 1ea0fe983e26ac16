"""The step by line of the user's code, or by scope if no lines are known."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter
from typing import NamedTuple, TypeAlias, TypeVar

from tpusim.base.checked_call import checked_call
from tpusim.base.phase import Phase
from tpusim.base.plain_text import plain
from tpusim.base.short_repr import ShortRepr
from tpusim.base.text_entry import entry
from tpusim.base.text_table import wrapped_table
from tpusim.base.units import format_seconds
from tpusim.costs import CORE
from tpusim.engine import Record, Timeline
from tpusim.program import Single
from tpusim.results.resources import operations_by_name
from tpusim.results.result import BUBBLE_LABEL, PICO, Result, check_result, label_of

LINES_SHOWN = 20
LONGEST_PLACE = 36
"""Lines of a printed table, and characters of a location in it."""

OPENED_SHARE = 0.1
MOST_BENEATH = 8
LEAST_BENEATH = 0.01
"""A line with at least this fraction of the step is shown with the lines of packages beneath it: at
most this many, each with at least this fraction of the line."""

ITSELF = "(itself)"
"""The work of a line that calls a package, without the package."""

PHASE_ABBREVIATIONS = {
    Phase.FORWARD: "fwd",
    Phase.RECOMPUTE: "rec",
    Phase.BACKWARD: "bwd",
    Phase.OPTIMIZER: "opt",
}
"""The phases in the table."""


SumKey = TypeVar("SumKey")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLine:
    """A line of the user's code, or a scope, and its share of the core's time. Times in seconds.

    place: `model.py:42`, or a scope; `(copy)` for copies that the compiler inserted.
    scope: the one that takes most of the time.
    does_s: by label as in a breakdown, the longest first.
    phases_s: by phase.
    library: the lines of packages that run for it, the most expensive first, each with its
        function; if there are any, they sum to it.
    """

    place: str
    scope: str
    seconds: float
    does_s: dict[str, float]
    phases_s: dict[Phase, float]
    library: tuple["SourceLine", ...] = ()
    function: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class LineTable(ShortRepr):
    """The lines of a step, the most expensive first; their seconds sum to the step time.

    sourced: True if lines of code are known, False if there are only scopes.
    """

    rows: tuple[SourceLine, ...]
    step_s: float
    sourced: bool

    def __str__(self) -> str:
        shown = self.rows[:LINES_SHOWN]
        rest = sum(row.seconds for row in self.rows[LINES_SHOWN:])
        tail = (
            f"; the others take {rest / self.step_s:.1%} together"
            if self.rows[LINES_SHOWN:]
            else ""
        )
        heads = ("line" if self.sourced else "scope", "time", "share", "what it does")
        cells = [heads, *(cells for row in shown for cells in self._opened(row))]
        head = entry("lines", f"{self._counted()}{tail}")
        return "\n".join([*head, *wrapped_table(cells, left=1)])

    def _counted(self) -> str:
        """Return the number of lines that the table shows, in words."""
        what = ("line{} of your code" if self.sourced else "scope{}").format
        if len(self.rows) > LINES_SHOWN:
            return f"the {LINES_SHOWN} most expensive of {len(self.rows):,} {what('s')}"
        return f"all {len(self.rows)} {what('s')}" if len(self.rows) > 1 else f"the one {what('')}"

    def _opened(self, row: SourceLine) -> Iterator[tuple[str, ...]]:
        """Yield a line and, if it takes much of the step, the lines of packages beneath it."""
        named = self.sourced and row.scope != row.place
        yield self._cells(row, row.scope if named else "")
        if row.seconds >= OPENED_SHARE * self.step_s:
            for each in _rows_beneath(row):
                yield self._cells(each, _bare(each.function) or each.scope, indent="  ")

    def _cells(self, row: SourceLine, name: str, indent: str = "") -> tuple[str, ...]:
        phases = " ".join(
            _shares({PHASE_ABBREVIATIONS[phase]: s for phase, s in row.phases_s.items()})
        )
        return (
            f"{indent}{_short(row.place or ITSELF)}",
            format_seconds(row.seconds),
            f"{row.seconds / self.step_s:.1%}",
            "; ".join(filter(None, (", ".join(_shares(row.does_s)), phases, plain(name)))),
        )


@checked_call
def explain_lines(result: Result) -> LineTable:
    """Return the core's time in a simulated step by line of code, the mean of stages or devices.

    A line has the core's time in its operations and in waits for them. Operations without a known
    line are listed by scope, or else by kind; time outside operations, such as a wait for the host,
    by label.
    """
    check_result(result, "explain_lines")
    cells: Counter[_LineCell] = Counter()
    for record, op, picoseconds in operation_records(result):
        cells[_cell(record, op)] += picoseconds
    cores = result.timeline.core_count
    seconds = {cell: ps * PICO / cores for cell, ps in cells.items() if ps}
    rows = (_line(*each) for each in _grouped(seconds, attrgetter("place")))
    return LineTable(_sorted(rows), result.step_time_s, any(cell.sourced for cell in cells))


class _LineCell(NamedTuple):
    place: str
    library: str
    scope: str
    label: str
    phase: Phase
    sourced: bool


_Cells: TypeAlias = Mapping[_LineCell, float]
"""Seconds of each cell."""


def _cell(record: Record, op: Single | None) -> _LineCell:
    if record.label == BUBBLE_LABEL:
        op = None
    scope = "" if op is None or _kind(op.scope) != op.scope else op.scope
    source, library = getattr(op, "source", ""), getattr(op, "library", "")
    place = source or scope or (record.label if op is None else f"({_kind(op.name)})")
    return _LineCell(place, library, scope, label_of(record.label), record.phase, bool(source))


def _kind(name: str) -> str:
    """Return the name of an operation without the number that the compiler appends."""
    return re.sub(r"(\.(\d+|clone))*( \(\d+\))?$", "", name)


def _grouped(cells: _Cells, key: Callable[[_LineCell], str]) -> Iterable[tuple[str, _Cells]]:
    groups: dict[str, dict[_LineCell, float]] = {}
    for cell, seconds in cells.items():
        groups.setdefault(key(cell), {})[cell] = seconds
    return groups.items()


def _line(place: str, cells: _Cells) -> SourceLine:
    """Return a line of the user's code with those of packages beneath it."""
    whole = _part(place, cells)
    if not any(cell.library for cell in cells):
        return whole
    beneath = (_beneath(*each) for each in _grouped(cells, attrgetter("library")))
    return replace(whole, library=_sorted(beneath))


def _beneath(library: str, cells: _Cells) -> SourceLine:
    place, _, function = library.partition(" in ")
    return replace(_part(place, cells), function=function)


def _part(place: str, cells: _Cells) -> SourceLine:
    return SourceLine(
        place=place,
        scope=next(iter(_summed((cell.scope, s) for cell, s in cells.items()))),
        seconds=sum(cells.values()),
        does_s=_summed((cell.label, s) for cell, s in cells.items()),
        phases_s=_by_phase((cell.phase, s) for cell, s in cells.items()),
    )


def _sorted(rows: Iterable[SourceLine]) -> tuple[SourceLine, ...]:
    return tuple(sorted(rows, key=lambda row: -row.seconds))


def _rows_beneath(row: SourceLine) -> Iterator[SourceLine]:
    """Yield the lines shown beneath a line: the most expensive, and the others together."""
    enough = [each for each in row.library if each.seconds >= LEAST_BENEATH * row.seconds]
    shown = enough[:MOST_BENEATH]
    rest = row.library[len(shown) :]
    yield from shown
    if len(rest) == 1:
        yield rest[0]
    elif rest:
        yield _together(f"({len(rest)} others)", rest)


def _together(place: str, rows: Sequence[SourceLine]) -> SourceLine:
    return SourceLine(
        place=place,
        scope="",
        seconds=sum(row.seconds for row in rows),
        does_s=_summed(part for row in rows for part in row.does_s.items()),
        phases_s=_by_phase(part for row in rows for part in row.phases_s.items()),
    )


def _by_phase(parts: Iterable[tuple[Phase, float]]) -> dict[Phase, float]:
    """Return the sums by phase, in the order of a step."""
    sums = _added(parts)
    return {phase: sums[phase] for phase in Phase if phase in sums}


def _summed(parts: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the sums by name, the largest first."""
    return dict(sorted(_added(parts).items(), key=lambda entry: -entry[1]))


def _added(parts: Iterable[tuple[SumKey, float]]) -> dict[SumKey, float]:
    sums: dict[SumKey, float] = {}
    for key, value in parts:
        sums[key] = sums.get(key, 0.0) + value
    return sums


def _shares(parts: dict[str, float]) -> Iterator[str]:
    """Yield each name with its share; a single one without."""
    whole = sum(parts.values())
    for name, part in parts.items():
        if part / whole >= 0.005:
            yield name if part > 0.995 * whole else f"{name} {part / whole:.0%}"


def _bare(function: str) -> str:
    """Return the name of a function without its enclosing functions."""
    return _short(function.replace(".<locals>", ""))


def _short(place: str) -> str:
    return place if len(place) <= LONGEST_PLACE else f"…{place[1 - LONGEST_PLACE :]}"


def operation_records(result: Result) -> Iterator[tuple[Record, Single | None, int]]:
    """Yield the records of all cores, each with its operation and the picoseconds of its devices.

    The operation is None for time outside operations.
    """
    timeline = result.timeline
    for lane in range(len(timeline.lanes)):
        known = operations_by_name(result.program_of(lane))
        devices = timeline.devices[lane] if timeline.devices else 1
        for record in core_records(timeline, lane):
            yield record, known.get(operation_of(record)), devices * record.total_ps


def core_records(timeline: Timeline, lane: int = 0) -> Iterator[Record]:
    """Yield the tasks and the waits of a lane's core."""
    for record in chain((task for task in timeline.tasks if task.stream == CORE), timeline.waits):
        if record.lane == lane:
            yield record


def operation_of(record: Record) -> str:
    """Return the name of the operation that a record is a part of.

    The parts of a collective follow one another; all but the last are named `name/label/0` and so
    on, the last like the operation.
    """
    return re.sub(rf"/{re.escape(record.label)}/\d+$", "", record.name)
