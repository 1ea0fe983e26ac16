"""How many runs are in ranges that are made of what was published before them: by_time.csv counted.

`by_time.py` writes the file: for each date and run, by how much the prediction would be another one
if only the runs published before the date were known.
"""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tpusim.accuracy import ErrorRange, MeasuredErrors, Residual, residuals

NUMBERS = Path(__file__).with_name("by_time.csv")
DATES = ("2024-07", "2025-01", "2025-07", "2026-01", "2026-07")
"""Half-years, from the first before which runs of four families were published."""
TODAY, CONSTANTS, MECHANISMS = "today", "constants", "mechanisms"
KINDS = (CONSTANTS, MECHANISMS)
"""What is of the time of a date: the fitted constants, or the mechanisms too."""
SHOWN = (TODAY, MECHANISMS)
"""The columns of the table."""


class Judged(NamedTuple):
    """A run, with the range that is made of the runs published before a date.

    run: its residual is that of the prediction as it would have been at the date.
    """

    run: Residual
    published: str
    found: ErrorRange

    @property
    def inside(self) -> bool:
        """True if the measured time is in the range."""
        return self.run.within(self.found.low, self.found.high)


class _Row(NamedTuple):
    published: str
    shifts: dict[str, float]


@cache
def _rows() -> dict[tuple[str, str], _Row]:
    with NUMBERS.open(encoding="utf-8") as file:
        return {
            (row["before"], row["run"]): _Row(
                row["published"], {TODAY: 0.0} | {kind: float(row[kind]) for kind in KINDS}
            )
            for row in csv.DictReader(file)
        }


def judged(date: str, kind: str) -> list[Judged]:
    """Return the runs published after a date with their ranges.

    kind: `today` for predictions as they are, or one of `KINDS`.
    """
    then = []
    for row in residuals():
        published, shifts = _rows()[date, row.id]
        then.append((replace(row, residual=row.residual - shifts[kind]), published))
    errors = MeasuredErrors([row for row, published in then if published < date])
    return [
        Judged(row, published, errors.range(row.features))
        for row, published in then
        if published >= date
    ]


def once(kind: str) -> list[Judged]:
    """Return each run once, with the range made of what was published before its half-year."""
    return [
        each
        for date, end in pairwise((*DATES, "9999"))
        for each in judged(date, kind)
        if each.published < end
    ]


def coverage(found: Sequence[Judged]) -> float:
    """Return the fraction of runs in their range."""
    return float(np.mean([each.inside for each in found]))


def table() -> str:
    """Return the lines between the markers of docs/accuracy.md, in Markdown."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield (
        "| ranges of runs published before | runs (families) | runs after | mean error: today "
        "| as of the date | in their range: today | as of the date | median half-width |"
    )
    yield f"| --- |{7 * ' ---: |'}"
    for date in DATES:
        after = {kind: judged(date, kind) for kind in SHOWN}
        new = {each.run.id for each in after[TODAY]}
        known = [row.family for row in residuals() if row.id not in new]
        yield _line(date, f"{len(known)} ({len(set(known))})", after)
    each_once = {kind: once(kind) for kind in SHOWN}
    yield _line("its own half-year, each run once", "", each_once)


def _line(name: str, known: str, found: dict[str, list[Judged]]) -> str:
    widths = [each.found.half_width for each in found[MECHANISMS]]
    cells = (
        *(name, known, str(len(widths))),
        *(f"{_mean_error(each):.1%}" for each in found.values()),
        *(f"{coverage(each):.1%}" for each in found.values()),
        f"{np.median(widths):.1%}",
    )
    return f"| {' | '.join(cells)} |"


def _mean_error(found: Sequence[Judged]) -> float:
    return float(np.mean(np.abs(np.expm1([-each.run.residual for each in found]))))
