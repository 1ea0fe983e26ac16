"""From a CSV file or a DataFrame to a header and rows of text."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpusim.errors import FileError
from tpusim.textfile import read_text

if TYPE_CHECKING:
    import pandas as pd

LARGEST = 2**26
INSTEAD = "the path of a CSV file"
Row = Mapping[str, str]


def read_rows(path: Path) -> tuple[list[str], list[Row]]:
    """The header and the rows of a CSV file; `FileError` with one sentence if it is none."""
    text = read_text(path, "a table of runs, where a run is one line", INSTEAD, LARGEST)
    if "\0" in text:
        raise FileError(f"not a text file (it holds NUL bytes); give {INSTEAD}")
    if not text.strip():
        raise FileError("the file is empty; write a header of column names and a row a run")
    try:
        lines = [line for line in csv.reader(StringIO(text), strict=True) if any(line)]
    except csv.Error as error:
        raise FileError(f"not a table of comma-separated values: {error}") from error
    header, *rows = ([cell.strip() for cell in line] for line in lines)
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            raise FileError(
                f"row {number} has {len(row)} cells and the header {len(header)}; "
                "put a text that holds commas in double quotes"
            )
    return header, [dict(zip(header, row, strict=True)) for row in rows]


def frame_rows(frame: "pd.DataFrame") -> tuple[list[str], list[Row]]:
    """The same of a DataFrame, as `pandas.read_csv` gives it."""
    if not hasattr(frame, "to_dict") or not hasattr(frame, "columns"):
        raise FileError(
            f"validate takes a DataFrame with a row a run, not a {type(frame).__name__}; "
            "write ts.validate(pandas.read_csv('runs.csv'))"
        )
    header = [str(name).strip() for name in frame.columns]
    rows: Iterable[Sequence[Any]] = frame.itertuples(index=False, name=None)
    return header, [dict(zip(header, map(_cell, row), strict=True)) for row in rows]


def _cell(value: Any) -> str:
    """A cell as a CSV file would hold it; whole numbers without a point, missing ones empty."""
    if value is None or value != value or str(value) == "<NA>":
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()
