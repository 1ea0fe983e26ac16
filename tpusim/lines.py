"""Where the step goes by line of the user's code, or by scope where no line is known."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from tpusim.costs.tasks import CORE
from tpusim.engine import Record, Timeline
from tpusim.phase import Phase
from tpusim.program import Program, Single, counted
from tpusim.result import BUBBLE, PICO, Result, label_of
from tpusim.summary import aligned
from tpusim.units import format_seconds

SHOWN = 20
LONGEST = 36
"""Lines of a printed table, and letters of a scope in it."""

BRIEF = {
    Phase.FORWARD: "fwd", Phase.RECOMPUTE: "rec", Phase.BACKWARD: "bwd", Phase.OPTIMIZER: "opt",
}  # fmt: skip
"""The phases in the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of the user's code, or a scope, and the core's time that is its. Times in seconds.

    place: `model.py:42`, or a scope; `(copy)` for copies that the compiler made on its own.
    scope: the one that takes most of it. does_s: by label as in a breakdown, work and what is
    exposed, the longest first. phases_s: by phase.
    """

    place: str
    scope: str
    seconds: float
    does_s: dict[str, float]
    phases_s: dict[Phase, float]


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines of a step, the most expensive first; their seconds sum to the step time.

    sourced: whether lines of code are known; otherwise places are scopes alone.
    """

    rows: tuple[Line, ...]
    step_s: float
    sourced: bool

    def __str__(self) -> str:
        what = "lines of your code" if self.sourced else "scopes"
        shown = self.rows[:SHOWN]
        rest = sum(row.seconds for row in self.rows[SHOWN:])
        most = f"the {len(shown)} most expensive of {len(self.rows):,}"
        head = f"lines       {most if rest else f'all {len(shown)}'} {what}"
        tail = f"; the others take {rest / self.step_s:.1%} together" if rest else ""
        heads = ("line" if self.sourced else "scope", "time", "share", "what it does")
        cells = [heads, *(self._cells(row) for row in shown)]
        return "\n".join([f"{head}{tail}", *aligned(cells, left=1)])

    def _cells(self, row: Line) -> tuple[str, ...]:
        phases = " ".join(_shares({BRIEF[phase]: s for phase, s in row.phases_s.items()}))
        scope = f"; {row.scope}" if self.sourced and row.scope else ""
        return (
            _short(row.place), format_seconds(row.seconds), f"{row.seconds / self.step_s:.1%}",
            f"{', '.join(_shares(row.does_s))}; {phases}{scope}",
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
    places: dict[str, dict[_Cell, float]] = {}
    for cell, picoseconds in cells.items():
        if picoseconds:
            places.setdefault(cell.place, {})[cell] = picoseconds * PICO / lanes
    rows = sorted((_line(*each) for each in places.items()), key=lambda row: -row.seconds)
    return Lines(tuple(rows), result.step_time_s, any(cell.sourced for cell in cells))


class _Cell(NamedTuple):
    place: str
    scope: str
    label: str
    phase: Phase
    sourced: bool


def _cell(record: Record, known: dict[str, Single]) -> _Cell:
    op = None if record.label == BUBBLE else known.get(operation_of(record))
    scope = "" if op is None or _kind(op.scope) != op.scope else op.scope
    source = "" if op is None else getattr(op, "source", "")
    place = source or scope or (record.label if op is None else f"({_kind(op.name)})")
    return _Cell(place, scope, label_of(record.label), record.phase, bool(source))


def _kind(name: str) -> str:
    """The name of an operation without its number, as the compiler gives it to all alike."""
    return re.sub(r"(\.(\d+|clone))*( \(\d+\))?$", "", name)


def _line(place: str, cells: dict[_Cell, float]) -> Line:
    return Line(
        place=place, scope=next(iter(_summed((cell.scope, s) for cell, s in cells.items()))),
        seconds=sum(cells.values()),
        does_s=_summed((cell.label, s) for cell, s in cells.items()),
        phases_s={
            phase: sum(s for cell, s in cells.items() if cell.phase is phase)
            for phase in Phase if any(cell.phase is phase for cell in cells)
        },
    )  # fmt: skip


def _summed(parts: Iterable[tuple[str, float]]) -> dict[str, float]:
    """The sums by name, the largest first."""
    sums: dict[str, float] = {}
    for name, value in parts:
        sums[name] = sums.get(name, 0.0) + value
    return dict(sorted(sums.items(), key=lambda entry: -entry[1]))


def _shares(parts: dict[str, float]) -> Iterator[str]:
    """Each name with its share; a single one without."""
    whole = sum(parts.values())
    for name, part in parts.items():
        if part / whole >= 0.005:
            yield name if part > 0.995 * whole else f"{name} {part / whole:.0%}"


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
