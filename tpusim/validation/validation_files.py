"""A validation on disk: `validation.csv`, `validation.json` and `runs.csv`."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from tpusim.base.csv_cells import cell_text
from tpusim.base.json_text import json_text
from tpusim.base.text_files import write_files
from tpusim.validation.outcome import outcome_columns
from tpusim.validation.validate import Validation

CSV_DECIMALS = 12
"""Decimals of fractions and seconds: the engine counts picoseconds."""

ERROR_COLUMNS = (
    *("id", "measured_s", "predicted_s", "low_s", "high_s"),
    *("error", "status", "reason", "span_low_s", "span_high_s", "in_span"),
)
"""The columns of `validation.csv`."""


def write_validation(validation: Validation, folder: Path | str) -> None:
    """Write the three files, each of them whole or not at all. Raise FileError if that fails.

    The same validation gives the same bytes.
    """
    contents = _file_contents(validation)
    write_files(Path(folder), {name: text.encode() for name, text in contents.items()})


def _file_contents(validation: Validation) -> Mapping[str, str]:
    columns = outcome_columns(validation.outcomes)
    return {
        "validation.csv": _csv_text({name: columns[name] for name in ERROR_COLUMNS}),
        "validation.json": f"{json_text(validation.statistics)}\n",
        "runs.csv": _csv_text(columns),
    }


def _csv_text(columns: Mapping[str, Sequence[Any]]) -> str:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    cells: Iterable[Iterable[Any]] = zip(*columns.values(), strict=True)
    writer.writerows([_written(cell) for cell in row] for row in cells)
    return text.getvalue()


def _written(cell: Any) -> Any:
    """Return a cell as a CSV file has it: decimals, and texts that no spreadsheet runs."""
    if isinstance(cell, float):
        return round(cell, CSV_DECIMALS)
    return cell_text(cell) if isinstance(cell, str) else cell
