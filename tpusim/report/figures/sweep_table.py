"""The table of a sweep as figures read it: columns that are there once, and numbers in them.

A table that was stored and read again may have numbers as text, and gaps; both are read. What is
neither is refused with the row and the column.
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tpusim.base.errors import TpusimError, nearest
from tpusim.base.shown_value import shown

if TYPE_CHECKING:
    from pandas import DataFrame, Series

_TRUTHS = {"true": True, "false": False, "1": True, "0": False, "1.0": True, "0.0": False}
_ADVICE = "give the table as ts.sweep or ts.scaling returns it"


def checked_table(table: Any, needed: Sequence[str], numbers: Iterable[str]) -> "DataFrame":
    """Return a table with `fits` as true and false, and numbers or NaN in the columns of numbers.

    needed: columns besides `fits` that must be there.
    numbers: those among the columns that hold numbers.

    Raise TpusimError for anything else.
    """
    if not hasattr(table, "columns") or not hasattr(table, "assign"):
        raise TpusimError(f"a figure of a table is given {shown(table)}; {_ADVICE}")
    for column in ("fits", *needed):
        count = list(table.columns).count(column)
        if count != 1:
            fault = "twice" if count else "missing"
            raise TpusimError(f"the column {column!r} of the table is {fault}; {_ADVICE}")
    changed = {column: _numbers(table, column) for column in numbers if column in table}
    return table.assign(fits=_truths(table), **changed)  # type: ignore[no-any-return]


def inputs_of(table: "DataFrame") -> list[str]:
    """Return the columns of what was tried, which stand before those of results.

    Raise TpusimError for a cell in them that is a table or a list.
    """
    columns = list(table.columns)
    found = columns[: columns.index("placement")]
    for column in found:
        for row, value in enumerate(table[column], 1):
            if not isinstance(value, Hashable):
                raise _fault(row, value, column, "a number or a text")
    return found


def check_axes(table: "DataFrame", axes: Iterable[str], known: Sequence[str]) -> "DataFrame":
    """Return a table with whole sizes of mesh axes; a gap is an axis of size 1.

    Raise TpusimError for an axis that is not among `known`, and for what is no size.
    """
    for axis in axes:
        if axis not in known:
            raise TpusimError(f"the sweep has no axis {axis!r}; {nearest(axis, known)}")
        sizes = _numbers(table, axis).fillna(1)
        wrong = [(row, size) for row, size in enumerate(sizes, 1) if not _is_size(size)]
        if wrong:
            raise _fault(*wrong[0], axis, "a whole number of at least 1")
        table = table.assign(**{axis: sizes.astype(int)})
    return table


def check_fitting(table: "DataFrame", columns: Iterable[str]) -> "DataFrame":
    """Return the rows that fit. Raise TpusimError for one without a number above 0 in a column."""
    for column in columns:
        for row, (fits, value) in enumerate(zip(table["fits"], table[column], strict=True), 1):
            if fits and not 0 < value < float("inf"):
                raise _fault(row, value, column, "a number above 0, as the plan fits")
    return table[table["fits"].astype(bool)]


def _numbers(table: "DataFrame", column: str) -> "Series[Any]":
    from pandas import to_numeric

    given = table[column]
    found = to_numeric(given.astype(object), errors="coerce").astype(float)
    for row, (old, new) in enumerate(zip(given, found, strict=True), 1):
        if new != new and _is_given(old):
            raise _fault(row, old, column, "a number")
    return found


def _truths(table: "DataFrame") -> "list[bool]":
    found = []
    for row, value in enumerate(table["fits"], 1):
        known = _TRUTHS.get(str(value).strip().lower()) if _is_given(value) else False
        if known is None:
            raise _fault(row, value, "fits", "true or false")
        found.append(known)
    return found


def _is_given(value: Any) -> bool:
    """Return False for a gap, as a frame holds it, and as a CSV file does."""
    from pandas import isna

    missing = isna(value)
    return not (missing is True or bool(getattr(missing, "all", lambda: missing)()) or value == "")


def _is_size(value: float) -> bool:
    return 1 <= value < float("inf") and value == int(value)


def _fault(row: int, value: Any, column: str, wanted: str) -> TpusimError:
    return TpusimError(
        f"row {row} of the table has {shown(value)} in the column {column!r}; write {wanted}"
    )
