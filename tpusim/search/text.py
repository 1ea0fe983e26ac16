"""A sweep as a short report for a terminal: how many plans fit, and the best of them."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from tpusim.result import BUBBLE
from tpusim.search.rows import OK, REFUSED, TOO_LARGE
from tpusim.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from pandas import DataFrame, Series

SHOWN = 10
WIDTH = 100
WIDEST = 24
REASONS = 3
MARGIN = " " * 12
SHARES = {"exposed": "exposed_s", "bubble": BUBBLE}
"""Columns of the printed table that are shares of the step."""

Cells = Sequence[Sequence[str]]


def text(table: "DataFrame", head: str) -> str:
    """`head`, the counts of each status, the ten best plans, and why plans were refused."""
    return "\n".join(_lines(table, head))


def best(table: "DataFrame", count: int = SHOWN) -> "DataFrame":
    """The fastest plans that fit, or where none does those that need the least memory.

    Each plan once, with its best placement.
    """
    fitting = table[table["status"] == OK]
    key = "step_time_s" if len(fitting) else "hbm_peak_bytes"
    some = fitting if len(fitting) else table[table["status"] == TOO_LARGE]
    return some.sort_values(key, kind="stable").drop_duplicates(_inputs(table)).head(count)


def _lines(table: "DataFrame", head: str) -> Iterator[str]:
    counts = {status: int((table["status"] == status).sum()) for status in (OK, TOO_LARGE, REFUSED)}
    yield f"sweep       {head}"
    yield (
        f"            {counts[OK]:,} fit, {counts[TOO_LARGE]:,} do not fit, "
        f"{counts[REFUSED]:,} refused"
    )
    shown = best(table)
    if len(shown):
        yield ""
        yield (
            "the fastest that fit" if counts[OK] else "none fits; those that need the least memory"
        )
        yield from _plans(shown)
    yield from _refused(table)


def _plans(table: "DataFrame") -> Sequence[str]:
    """A line a plan; where its axes lie is left out when that makes the lines too long."""
    for places in (True, False):
        cells = [_heads(table), *_cells(table, places=places)]
        lines = list(_aligned(cells, len(_inputs(table))))
        if max(map(len, lines)) <= WIDTH:
            break
    return lines


def _refused(table: "DataFrame") -> Iterator[str]:
    """How many plans were refused and why; reasons that differ in numbers alone count as one."""
    alike: dict[str, list[str]] = {}
    for reason in table.loc[table["status"] == REFUSED, "reason"]:
        alike.setdefault(re.sub(r"\(.*?\)|[\d,]+", "#", reason), []).append(reason)
    for place, reasons in enumerate(alike.values()):
        such = ", such as" if len(set(reasons)) > 1 else ""
        if place < REASONS:
            yield from ("",) if place == 0 else ()
            yield from wrap(
                f"refused     {len(reasons):,}{such}: {reasons[0]}", WIDTH,
                subsequent_indent=MARGIN, break_long_words=False, break_on_hyphens=False,
            )  # fmt: skip
    if len(alike) > REASONS:
        others = len(alike) - REASONS
        yield f"{MARGIN}and {others:,} other reason{'s' * (others > 1)}"


def _inputs(table: "DataFrame") -> list[str]:
    """The columns that distinguish plans: all before the placement."""
    return list(table.columns[: table.columns.get_loc("placement")])


def _heads(table: "DataFrame") -> Sequence[str]:
    return (*_inputs(table), "step time", "slower", "MFU", *_shares(table), "HBM peak")


def _shares(table: "DataFrame") -> Mapping[str, str]:
    """The shares that are shown, with their columns: bubbles only where there are pipelines."""
    piped = BUBBLE in table and table[BUBBLE].any()
    return {head: key for head, key in SHARES.items() if piped or key != BUBBLE}


def _cells(table: "DataFrame", *, places: bool) -> Iterator[Sequence[str]]:
    first = float(table["step_time_s"].min())
    for _, row in table.iterrows():
        laid = dict(_laid(part) for part in str(row["placement"]).split(" · ") if places)
        inputs = {key: _cut(str(row[key]), WIDEST) for key in _inputs(table)}
        yield (*(f"{cell} {laid.get(key, '')}".rstrip() for key, cell in inputs.items()),
               *_numbers(row, first, _shares(table).values()))  # fmt: skip


def _laid(part: str) -> tuple[str, str]:
    """The axis and the dimensions of `tensor=8 on x`."""
    axis, _, dims = part.partition(" on ")
    return axis.partition("=")[0], dims


def _numbers(row: "Series[Any]", first: float, shares: Iterable[str]) -> Iterator[str]:
    step = float(row["step_time_s"])
    yield format_seconds(step)
    yield f"{step / first - 1:.1%}" if step > first else "-"
    yield f"{row['mfu']:.1%}"
    yield from (f"{row[key] / step:.1%}" for key in shares)
    yield format_bytes(row["hbm_peak_bytes"])


def _aligned(rows: Cells, tried: int) -> Iterator[str]:
    """What was tried to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if place < tried else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield f"  {'  '.join(cells)}"


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 3]}..."
