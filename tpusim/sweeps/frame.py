"""The frame of a sweep: its columns, which depend on the space alone, and its rows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING, Any

from tpusim.base.errors import PlanError
from tpusim.sweeps.rows import (
    PLAN_REFUSED,
    RANGE_COLUMNS,
    RESULT_NUMBERS,
    SweepRow,
    breakdown_labels,
)
from tpusim.sweeps.search_axes import SweepCandidate

if TYPE_CHECKING:
    from pandas import DataFrame

TEXTS = ("placement", "fit", "status", "reason")


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
        numbers = (*RESULT_NUMBERS, "fit", "fit_odds", *RANGE_COLUMNS)
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
    """Return one row per candidate; the numbers of a refused plan are NaN.

    An axis that is missing from a mesh has size 1, and a label that is from a breakdown 0 s.
    """
    import numpy as np
    from pandas import DataFrame

    none = [nan if each["status"] == PLAN_REFUSED else 0.0 for each in outcomes]
    cells: dict[str, Any] = {
        **{axis: [each.plan.mesh.get(axis, 1) for each in tried] for axis in columns.axes},
        **{name: [cell(each.values[name]) for each in tried] for name in columns.varied},
        **{name: [each[name] for each in outcomes] for name in TEXTS},
    }
    for name in (*RESULT_NUMBERS, "fit_odds", *RANGE_COLUMNS):
        cells[name] = np.array([each.get(name) for each in outcomes], np.float64)
    for name in columns.breakdown:
        found = [each.get(name, zero) for each, zero in zip(outcomes, none, strict=True)]
        cells[name] = np.array(found, np.float64)
    cells["fits"] = [each["fits"] for each in outcomes]
    return DataFrame(cells, columns=list(columns.names))


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
