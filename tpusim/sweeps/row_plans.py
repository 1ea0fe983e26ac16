"""Rows of a sweep's frame, read back: what a row says of the plan that it is of."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tpusim.base.errors import PlanError
from tpusim.base.frame_values import is_missing, python_value
from tpusim.sweeps.frame import cell
from tpusim.sweeps.search_axes import SearchAxis, SweepCandidate

ROW_ADVICE = "give one row of the sweep's frame, such as frame.iloc[0]"


def row_cells(row: Any) -> dict[str, Any]:
    """Return the cells of a row by column, as Python's values; those without a value are absent.

    row: a pandas Series, or a mapping such as `frame.to_dict("records")` has.

    Raise PlanError for anything else.
    """
    if hasattr(row, "columns"):
        raise PlanError(f"the row is a frame of {len(row)} rows; {ROW_ADVICE}")
    if not isinstance(row, Mapping) and not (hasattr(row, "items") and hasattr(row, "index")):
        raise PlanError(f"the row is {row!r:.60}; {ROW_ADVICE}")
    return {str(key): python_value(value) for key, value in row.items() if not is_missing(value)}


def varied_values(vary: Mapping[str, Sequence[Any]], cells: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of each varied key that a row has; one of the space, or its own."""
    return {key: value_of(cells[key], values) for key, values in vary.items() if key in cells}


def value_of(written: Any, values: Iterable[Any]) -> Any:
    """Return the value of which a cell is `written`; a cell of another value is its own."""
    values = list(values)
    for value in values:
        if cell(value) == written:
            return value
    whole = isinstance(written, float) and written.is_integer()
    return int(written) if whole and all(isinstance(v, int) for v in values) else written


def row_mesh(
    base: Mapping[str, int],
    axes: Sequence[str],
    meshes: Sequence[Mapping[str, int]],
    cells: Mapping[str, Any],
) -> Mapping[str, int]:
    """Return the mesh of a row: one of `meshes`, or the base's with the row's sizes of `axes`.

    Raise PlanError for a row without them.
    """
    for mesh in meshes:
        every = {axis for each in meshes for axis in each}
        if all(_size(cells, axis) == mesh.get(axis, 1) for axis in every):
            return mesh
    if meshes:
        raise PlanError(f"the row has a mesh that is not among sweep.meshes; {ROW_ADVICE}")
    return {**base, **{axis: _size(cells, axis) for axis in axes}}


def _size(cells: Mapping[str, Any], axis: str) -> int:
    """Return the size of a mesh axis; a column of numbers with gaps holds it as a float."""
    if axis not in cells:
        raise PlanError(f"the row has no size of the mesh axis {axis!r}; {ROW_ADVICE}")
    size = cells[axis]
    if isinstance(size, bool) or not isinstance(size, int | float) or size != int(size):
        raise PlanError(f"the row has {size!r} for the mesh axis {axis!r}; {ROW_ADVICE}")
    return int(size)


def with_row_values(
    candidate: SweepCandidate, axes: Sequence[SearchAxis], cells: Mapping[str, Any]
) -> SweepCandidate:
    """Return a candidate with the row's values of search axes that are not built in.

    Raise PlanError for an axis whose value the row does not have.
    """
    for axis in axes:
        if axis.column not in cells:
            raise PlanError(
                f"the row does not say the value of the search axis {axis.column!r}; {ROW_ADVICE}"
            )
        value = value_of(cells[axis.column], axis.values(candidate))
        candidate = axis.change(candidate, value)
    return candidate
