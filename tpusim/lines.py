"""Where the step goes by line of the user's code, or by scope where no line is known."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter
from typing import NamedTuple, TypeAlias, TypeVar

from tpusim.costs.tasks import CORE
from tpusim.engine import Record, Timeline
from tpusim.phase import Phase
from tpusim.program import Program, Single, counted
from tpusim.result import BUBBLE, PICO, Result, label_of
from tpusim.summary import aligned
from tpusim.units import format_seconds

SHOWN = 20
LONGEST = 36
"""Lines of a printed table, and letters of a place in it."""

OPENED = 0.1
BENEATH = 8
LEAST = 0.01
"""A line is shown with what is beneath it from this share of the step on: so many lines of packages
at most, each with at least so much of the line."""

ITSELF = "(itself)"
"""What a line that calls a package does without it."""

BRIEF = {
    Phase.FORWARD: "fwd", Phase.RECOMPUTE: "rec", Phase.BACKWARD: "bwd", Phase.OPTIMIZER: "opt",
}  # fmt: skip
"""The phases in the table."""


Key = TypeVar("Key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of the user's code, or a scope, and the core's time that is its. Times in seconds.

    place: `model.py:42`, or a scope; `(copy)` for copies that the compiler made on its own.
    scope: the one that takes most of it. does_s: by label as in a breakdown, work and what is
    exposed, the longest first. phases_s: by phase. library: the lines of packages that run for it,
    the most expensive first, each with its function; where there are any, they sum to it.
    """

    place: str
    scope: str
    seconds: float
    does_s: dict[str, float]
    phases_s: dict[Phase, float]
    library: tuple["Line", ...] = ()
    function: str = ""


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines of a step, the most expensive first; their seconds sum to the step time.

    sourced: whether lines of code are known; otherwise places are scopes alone.
    """

    rows: tuple[Line, ...]
    step_s: float
    sourced: bool

    def __str__(self) -> str:
        shown = self.rows[:SHOWN]
        rest = sum(row.seconds for row in self.rows[SHOWN:])
        tail = f"; the others take {rest / self.step_s:.1%} together" if self.rows[SHOWN:] else ""
        heads = ("line" if self.sourced else "scope", "time", "share", "what it does")
        cells = [heads, *(cells for row in shown for cells in self._opened(row))]
        head = f"lines       {self._counted()}{tail}"
        return "\n".join([head, *aligned(cells, left=1)])

    def _counted(self) -> str:
        """Which lines the table shows."""
        what = ("line{} of your code" if self.sourced else "scope{}").format
        if len(self.rows) > SHOWN:
            return f"the {SHOWN} most expensive of {len(self.rows):,} {what('s')}"
        return f"all {len(self.rows)} {what('s')}" if len(self.rows) > 1 else f"the one {what('')}"

    def _opened(self, row: Line) -> Iterator[tuple[str, ...]]:
        """A line, and where it takes much of the step, the lines of packages beneath it."""
        named = self.sourced and row.scope != row.place
        yield self._cells(row, row.scope if named else "")
        if row.seconds >= OPENED * self.step_s:
            for each in _worth(row):
                yield self._cells(each, _bare(each.function) or each.scope, indent="  ")

    def _cells(self, row: Line, name: str, indent: str = "") -> tuple[str, ...]:
        phases = " ".join(_shares({BRIEF[phase]: s for phase, s in row.phases_s.items()}))
        return (
            f"{indent}{_short(row.place or ITSELF)}", format_seconds(row.seconds),
            f"{row.seconds / self.step_s:.1%}",
            "; ".join(each for each in (", ".join(_shares(row.does_s)), phases, name) if each),
        )  # fmt: skip


def explain_lines(result: Result) -> Lines:
    """The core's time in a simulated step, by line of code; the mean of a pipeline's stages.

    A line has what its operations take on the core, and what the core waits for them. Operations
    that no line is known of stand under their scope, or else under their kind; what belongs to no
    operation (a wait for the host, say) under its label.
    """
    cells: Counter[_Cell] = Counter()
    for lane, program in enumerate(result.programs):
        known = operations(program)
        for record in core_records(result.timeline, lane):
            cells[_cell(record, known)] += record.total_ps
    lanes = len(result.programs)
    seconds = {cell: ps * PICO / lanes for cell, ps in cells.items() if ps}
    rows = (_line(*each) for each in _grouped(seconds, attrgetter("place")))
    return Lines(_sorted(rows), result.step_time_s, any(cell.sourced for cell in cells))


class _Cell(NamedTuple):
    place: str
    library: str
    scope: str
    label: str
    phase: Phase
    sourced: bool


_Cells: TypeAlias = Mapping[_Cell, float]
"""Seconds of what is told apart."""


def _cell(record: Record, known: dict[str, Single]) -> _Cell:
    op = None if record.label == BUBBLE else known.get(operation_of(record))
    scope = "" if op is None or _kind(op.scope) != op.scope else op.scope
    source, library = getattr(op, "source", ""), getattr(op, "library", "")
    place = source or scope or (record.label if op is None else f"({_kind(op.name)})")
    return _Cell(place, library, scope, label_of(record.label), record.phase, bool(source))


def _kind(name: str) -> str:
    """The name of an operation without its number, as the compiler gives it to all alike."""
    return re.sub(r"(\.(\d+|clone))*( \(\d+\))?$", "", name)


def _grouped(cells: _Cells, key: Callable[[_Cell], str]) -> Iterable[tuple[str, _Cells]]:
    groups: dict[str, dict[_Cell, float]] = {}
    for cell, seconds in cells.items():
        groups.setdefault(key(cell), {})[cell] = seconds
    return groups.items()


def _line(place: str, cells: _Cells) -> Line:
    """A line of the user's, with those of packages beneath it."""
    whole = _part(place, cells)
    if not any(cell.library for cell in cells):
        return whole
    beneath = (_beneath(*each) for each in _grouped(cells, attrgetter("library")))
    return replace(whole, library=_sorted(beneath))


def _beneath(library: str, cells: _Cells) -> Line:
    place, _, function = library.partition(" in ")
    return replace(_part(place, cells), function=function)


def _part(place: str, cells: _Cells) -> Line:
    return Line(
        place=place, scope=next(iter(_summed((cell.scope, s) for cell, s in cells.items()))),
        seconds=sum(cells.values()),
        does_s=_summed((cell.label, s) for cell, s in cells.items()),
        phases_s=_by_phase((cell.phase, s) for cell, s in cells.items()),
    )  # fmt: skip


def _sorted(rows: Iterable[Line]) -> tuple[Line, ...]:
    return tuple(sorted(rows, key=lambda row: -row.seconds))


def _worth(row: Line) -> Iterator[Line]:
    """What is shown beneath a line: the most expensive, and the others together."""
    enough = [each for each in row.library if each.seconds >= LEAST * row.seconds]
    shown = enough[:BENEATH]
    rest = row.library[len(shown) :]
    yield from shown
    if len(rest) == 1:
        yield rest[0]
    elif rest:
        yield _together(f"({len(rest)} others)", rest)


def _together(place: str, rows: Sequence[Line]) -> Line:
    return Line(
        place=place, scope="", seconds=sum(row.seconds for row in rows),
        does_s=_summed(part for row in rows for part in row.does_s.items()),
        phases_s=_by_phase(part for row in rows for part in row.phases_s.items()),
    )  # fmt: skip


def _by_phase(parts: Iterable[tuple[Phase, float]]) -> dict[Phase, float]:
    """The sums by phase, in the order of a step."""
    sums = _added(parts)
    return {phase: sums[phase] for phase in Phase if phase in sums}


def _summed(parts: Iterable[tuple[str, float]]) -> dict[str, float]:
    """The sums by name, the largest first."""
    return dict(sorted(_added(parts).items(), key=lambda entry: -entry[1]))


def _added(parts: Iterable[tuple[Key, float]]) -> dict[Key, float]:
    sums: dict[Key, float] = {}
    for key, value in parts:
        sums[key] = sums.get(key, 0.0) + value
    return sums


def _shares(parts: dict[str, float]) -> Iterator[str]:
    """Each name with its share; a single one without."""
    whole = sum(parts.values())
    for name, part in parts.items():
        if part / whole >= 0.005:
            yield name if part > 0.995 * whole else f"{name} {part / whole:.0%}"


def _bare(function: str) -> str:
    """A function without where it is defined, should that be inside another."""
    return _short(function.replace(".<locals>", ""))


def _short(place: str) -> str:
    return place if len(place) <= LONGEST else f"…{place[1 - LONGEST :]}"


def operations(program: Program) -> dict[str, Single]:
    """The operations of a program, by name."""
    return {op.name: op for op, _ in counted(program.body, program.segments)}


def core_records(timeline: Timeline, lane: int = 0) -> Iterator[Record]:
    """What the core of a lane runs, and what it waits for."""
    for record in chain((task for task in timeline.tasks if task.stream == CORE), timeline.waits):
        if record.lane == lane:
            yield record


def operation_of(record: Record) -> str:
    """The operation that a record is a part of.

    The parts of a collective follow one another; all but the last are called `name/label/0` and so
    on, the last as the operation.
    """
    return re.sub(rf"/{re.escape(record.label)}/\d+$", "", record.name)
