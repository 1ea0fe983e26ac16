"""CSV tables: how those of users are read, and cells that no spreadsheet runs."""

import csv
import re
from io import StringIO
from typing import Any

from tpusim.base.errors import FileError
from tpusim.base.plain_text import visible

FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")
NUMBER = re.compile(r"[+-]?[0-9.]+(e[+-]?[0-9]+)?")


def csv_rows(text: str) -> list[list[str]]:
    """Return the header and the rows of a table, without empty lines; cells are stripped.

    Lines may end as on any system. Raise FileError for what is no table, and for a row that has not
    as many cells as the header.
    """
    if "\0" in text:
        raise FileError("not a text file (it holds NUL bytes); give a table with commas")
    try:
        lines = [
            line for line in csv.reader(StringIO(text, newline=None), strict=True) if any(line)
        ]
    except csv.Error as error:
        raise FileError(f"not a table of comma-separated values: {error}") from error
    rows = [[cell.strip() for cell in line] for line in lines]
    for number, row in enumerate(rows[1:], 1):
        if len(row) != len(rows[0]):
            raise FileError(
                f"row {number} has {len(row)} cells and the header {len(rows[0])}; "
                "put a text that holds commas in double quotes"
            )
    return rows


def cell_text(text: str) -> str:
    """Return a cell; a spreadsheet would run a text that begins as a formula, so that is quoted.

    >>> cell_text("=1+1"), cell_text("-1.5"), cell_text("matmul")
    ("'=1+1", '-1.5', 'matmul')
    """
    if text[:1] in FORMULA_SIGNS and not NUMBER.fullmatch(text):
        text = f"'{text}"
    return visible(text)


def frame_csv(table: Any) -> str:
    """Return a pandas frame as CSV, without its index; heads and texts are `cell_text`."""
    texts = table.select_dtypes(exclude=["number", "bool"]).columns
    kept = table.assign(**{column: table[column].map(_cell) for column in texts})
    text: str = kept.rename(columns=_cell).to_csv(index=False, lineterminator="\n")
    return text


def _cell(value: Any) -> Any:
    return cell_text(value) if isinstance(value, str) else value
