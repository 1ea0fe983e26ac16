"""A sweep as a short report for a terminal: counts by status, and the best plans."""

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tpusim.base.text_table import folded_table, padded
from tpusim.base.text_width import PAGE_WIDTH, table_width, wrapped
from tpusim.base.units import format_bytes, format_seconds
from tpusim.costs import INPUT
from tpusim.results import BUBBLE_LABEL, EXPOSED, Fit
from tpusim.sweeps.rows import PLAN_FITS, PLAN_REFUSED, PLAN_STATUSES, PLAN_TOO_LARGE

if TYPE_CHECKING:
    from pandas import DataFrame

SHOWN_PLANS = 10
SHOWN_REASONS = 3
WIDEST_CELL = 24
TEXT_INDENT = " " * 12
TABLE_INDENT = "  "
MARK = "*"
"""Stands behind the HBM of borderline plans."""
STEP_SHARES = {"exposed": "exposed_s", "input": f"{EXPOSED}{INPUT}", "bubble": BUBBLE_LABEL}
"""Columns of the printed table that are fractions of the step; `exposed` has the input's too."""


def sweep_text(table: "DataFrame", head: str) -> str:
    """Return `head`, the count of each status, the ten best plans, and reasons for refusals."""
    return "\n".join(_lines(table, head))


def best_plans(table: "DataFrame", count: int = SHOWN_PLANS) -> "DataFrame":
    """Return the fastest plans that fit or, if none does, those that need the least memory.

    Each plan occurs once, with its best placement.
    """
    fitting = table[table["status"] == PLAN_FITS]
    key = "step_time_s" if len(fitting) else "hbm_peak_bytes"
    some = fitting if len(fitting) else table[table["status"] == PLAN_TOO_LARGE]
    return some.sort_values(key, kind="stable").drop_duplicates(_inputs(table)).head(count)


def _lines(table: "DataFrame", head: str) -> Iterator[str]:
    fits, too_large, refused = (int((table["status"] == each).sum()) for each in PLAN_STATUSES)
    yield from wrapped(f"sweep       {head}", "", TEXT_INDENT)
    yield f"{TEXT_INDENT}{fits:,} fit, {too_large:,} do not fit, {refused:,} refused"
    if count := int((table["fit"] == Fit.BORDERLINE).sum()):
        yield f"{TEXT_INDENT}{count:,} borderline ({MARK}): the compiler alone can tell"
    if fits or too_large:
        yield ""
        yield "the fastest that fit" if fits else "none fits; those that need the least memory"
        yield from _plan_lines(best_plans(table))
    yield from _refused(table)


def _plan_lines(table: "DataFrame") -> Sequence[str]:
    """Return a line per plan, with the dimensions of each axis unless lines get too long."""
    inputs = _inputs(table)
    shares = {
        head: key
        for head, key in STEP_SHARES.items()
        if head == "exposed" or (key in table and table[key].any())
    }
    heads = (*inputs, "step time", "slower", "MFU", *shares, "HBM peak")
    for with_dims in (True, False):
        cells = _cells(table, inputs, list(shares.values()), with_dims=with_dims)
        rows = [heads, *cells]
        if max(map(len, padded(rows, len(inputs), TABLE_INDENT))) <= (table_width() or PAGE_WIDTH):
            break
    return list(folded_table(rows, len(inputs), TABLE_INDENT))


def _refused(table: "DataFrame") -> Iterator[str]:
    """Yield counts and reasons of refused plans; reasons that differ in numbers only are one."""
    alike: dict[str, list[str]] = {}
    for reason in table.loc[table["status"] == PLAN_REFUSED, "reason"]:
        alike.setdefault(re.sub(r"\(.*?\)|[\d,]+", "#", reason), []).append(reason)
    if alike:
        yield ""
    for reasons in list(alike.values())[:SHOWN_REASONS]:
        such = ", such as" if len(set(reasons)) > 1 else ""
        yield from wrapped(f"refused     {len(reasons):,}{such}: {reasons[0]}", "", TEXT_INDENT)
    if len(alike) > SHOWN_REASONS:
        others = len(alike) - SHOWN_REASONS
        yield f"{TEXT_INDENT}and {others:,} other reason{'s' * (others > 1)}"


def refused_kinds(table: "DataFrame", columns: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for each value of `columns` of which every plan is refused; one if all are.

    Plans that are refused one by one, such as meshes that do not divide a batch, are no kind.
    """
    refused = table["status"] == PLAN_REFUSED
    if len(table) and refused.all():
        yield f"every plan is refused: {table['reason'].iloc[0]}"
        return
    for column in columns:
        every = refused.groupby(table[column], sort=False).agg("all")
        for value in every.index[every]:
            reason = table.loc[table[column] == value, "reason"].iloc[0]
            yield f"every plan with {column} = {value} is refused: {reason}"


def _inputs(table: "DataFrame") -> list[str]:
    """Return the columns that distinguish plans: all before the placement."""
    return list(table.columns[: table.columns.get_loc("placement")])


def _cells(
    table: "DataFrame", inputs: Sequence[str], shares: Sequence[str], *, with_dims: bool
) -> Iterator[Sequence[str]]:
    fastest = float(table["step_time_s"].min())
    for row in table.to_dict("records"):
        parts = str(row["placement"]).split(" · ") if with_dims else ()
        dims = dict(map(_axis_and_dims, parts))
        step = row["step_time_s"]
        yield (
            *(f"{_cut(str(row[key]))} {dims.get(key, '')}".rstrip() for key in inputs),
            format_seconds(step),
            f"{step / fastest - 1:.1%}" if step > fastest else "-",
            f"{row['mfu']:.1%}",
            *(f"{row[key] / step:.1%}" for key in shares),
            format_bytes(row["hbm_peak_bytes"]) + MARK * (row["fit"] == Fit.BORDERLINE),
        )


def _axis_and_dims(part: str) -> tuple[str, str]:
    """Return the axis and the torus dimensions of `tensor=8 on x`."""
    axis, _, dims = part.partition(" on ")
    return axis.partition("=")[0], dims


def _cut(cell: str) -> str:
    return cell if len(cell) <= WIDEST_CELL else f"{cell[: WIDEST_CELL - 3]}..."
