"""The frame of a sweep: its columns, which depend on the space alone, and its rows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpusim.base.errors import PlanError
from tpusim.exploration.rows import (
    PLAN_REFUSED,
    RANGE_COLUMNS,
    RESULT_NUMBERS,
    SweepRow,
    breakdown_labels,
)
from tpusim.exploration.search_axes import SweepCandidate

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, slots=True)
class SweepColumns:
    """The columns of a sweep: sizes of mesh axes, values of search axes, breakdown labels."""

    axes: tuple[str, ...]
    varied: tuple[str, ...]
    breakdown: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """All columns, in order."""
        inputs = (*self.axes, *self.varied)
        numbers = (*RESULT_NUMBERS, "fit", *RANGE_COLUMNS)
        return (*inputs, "placement", *numbers, *self.breakdown, "status", "reason")


def sweep_columns(
    axes: Iterable[str], active: Iterable[str], varied: Sequence[str]
) -> SweepColumns:
    """Return the columns for plans whose meshes have `axes`, with the search axes in `varied`.

    active: the axes that are larger than one in some mesh.

    Raise PlanError for an axis with the name of another column.
    """
    axes = tuple(axes)
    found = SweepColumns(axes, tuple(varied), breakdown_labels(active))
    for axis in (*axes, *varied):
        if found.names.count(axis) > 1:
            kind = "mesh" if axis in axes else "search"
            raise PlanError(
                f"the {kind} axis {axis!r} has the name of a column; write another name"
            )
    return found


def sweep_frame(
    columns: SweepColumns, tried: Sequence[SweepCandidate], outcomes: Sequence[SweepRow]
) -> "DataFrame":
    """Return one row per candidate; the numbers of a refused plan are NaN."""
    from pandas import DataFrame

    rows = [
        _inputs(columns, candidate) | _zeros(columns, outcome) | outcome
        for candidate, outcome in zip(tried, outcomes, strict=True)
    ]
    floats = {*RESULT_NUMBERS, *RANGE_COLUMNS, *columns.breakdown} - {"fits"}
    kinds = dict.fromkeys(columns.axes, "int64") | dict.fromkeys(floats, "float64")
    return DataFrame(rows, columns=list(columns.names)).astype(kinds)


def _inputs(columns: SweepColumns, candidate: SweepCandidate) -> SweepRow:
    """Return the cells that distinguish a plan; an axis missing from its mesh has size 1."""
    sizes = {axis: candidate.plan.mesh.get(axis, 1) for axis in columns.axes}
    return sizes | {column: cell(candidate.values[column]) for column in columns.varied}


def _zeros(columns: SweepColumns, outcome: SweepRow) -> SweepRow:
    return {} if outcome["status"] == PLAN_REFUSED else dict.fromkeys(columns.breakdown, 0.0)


def cell(value: Any) -> float | str:
    """Return a value as one cell: numbers and names unchanged, anything else as text.

    >>> cell({"act_embed": "tensor", "mlp": ["fsdp", "tensor"]})
    'act_embed=tensor, mlp=fsdp+tensor'
    >>> cell(())
    'none'
    """
    if isinstance(value, int | float | str):
        return value
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={_cell_part(inner)}" for key, inner in value.items()) or "none"
    return ", ".join(map(_cell_part, value or ())) or "none"


def _cell_part(value: Any) -> str:
    if isinstance(value, int | str):
        return str(value)
    return "+".join(map(_cell_part, value or ())) or "none"
