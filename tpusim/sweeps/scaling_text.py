"""Scaling curves as text for a terminal: a table for each curve."""

from collections.abc import Iterator, Mapping, Sequence
from math import isnan
from typing import TYPE_CHECKING, Any

from tpusim.base.text_table import folded_table
from tpusim.base.text_width import wrapped
from tpusim.base.units import format_seconds
from tpusim.results import entry
from tpusim.sweeps.format import TABLE_INDENT
from tpusim.sweeps.rows import PLAN_FITS, PLAN_REFUSED, PLAN_TOO_LARGE

if TYPE_CHECKING:
    from pandas import DataFrame

MEASURED_STEP = "measured_step_time_s"
MEASURED_RUN = "measured_run"
"""Columns of measured points, where the table has them."""

_WHAT_GROWS = {"chips": "the chips of a slice", "slices": "the slices"}
_HEADS = ("chips", "slice", "mesh", "batch", "step time", "MFU", "tokens/s", "efficiency")
EFFICIENCY = "efficiency: examples per second and chip; 100% is the first plan of each table"
"""What the last column of a table is."""

_LEFT = 3
"""Columns that are aligned to the left: the first ones after the chips."""


def scaling_text(head: str, grows: Mapping[str, str], table: "DataFrame") -> str:
    """Return what grows, and a table for each curve; measured steps where the table has them."""
    return "\n".join(_lines(head, grows, table))


def _lines(head: str, grows: Mapping[str, str], table: "DataFrame") -> Iterator[str]:
    yield from entry("scaling", head)
    for measure, axis in grows.items():
        yield from entry("", f"{axis} grows with {_WHAT_GROWS[measure]}; the other axes stay")
    yield from entry("", EFFICIENCY)
    for (curve, over), rows in table.groupby(["curve", "over"], sort=False):
        batch = "the batch grows with the chips" if curve == "weak" else "the batch stays"
        yield ""
        yield from wrapped(f"{curve} scaling over {_WHAT_GROWS[str(over)]}: {batch}", "", "  ")
        yield from _table(rows.to_dict("records"))


def _table(rows: Sequence[Mapping[Any, Any]]) -> Iterator[str]:
    measured = any(row.get(MEASURED_RUN) for row in rows)
    heads = (*_HEADS, *(("measured",) if measured else ()))
    cells = [_cells(row, measured) for row in rows]
    yield from folded_table([heads, *cells], _LEFT, TABLE_INDENT)
    for row in rows:
        if row["status"] == PLAN_REFUSED:
            yield from entry("refused", f"{row['chips']:,} chips: {row['reason']}")
    if any(row["status"] == PLAN_TOO_LARGE for row in rows):
        yield "*           does not fit in HBM"


def _cells(row: Mapping[Any, Any], measured: bool) -> tuple[str, ...]:
    many = f" x {row['slices']}" if row["slices"] > 1 else ""
    inputs = (
        f"{row['chips']:,}{'' if row['status'] in (PLAN_FITS, PLAN_REFUSED) else '*'}",
        f"{row['topology']}{many}",
        row["mesh"],
        f"{row['global_batch']:,}",
    )
    numbers = ("refused", "-", "-", "-")
    if not isnan(row["step_time_s"]):
        numbers = (
            format_seconds(row["step_time_s"]),
            f"{row['mfu']:.1%}",
            f"{row['tokens_per_s']:,.0f}",
            f"{row['efficiency']:.1%}",
        )
    if not measured:
        return (*inputs, *numbers)
    step = row[MEASURED_STEP]
    return (*inputs, *numbers, "-" if isnan(step) else format_seconds(step))
