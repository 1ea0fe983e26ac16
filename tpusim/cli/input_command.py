"""The command `tpusim input-rate`."""

import csv
import io
from pathlib import Path

from tpusim.base.errors import FileError, blame
from tpusim.base.text_files import read_text
from tpusim.plan import MeasuredStage, fit_stages, rate_lines

COLUMNS = ("stage", "threads", "records", "bytes", "seconds")
HELP = f"a CSV file with the columns {', '.join(COLUMNS)}"


def input_rates(path: str | None) -> str:
    """Return the default rates with their sources, or those that a measured sample shows."""
    if path is None:
        return "\n".join(rate_lines())
    text = read_text(Path(path), "a sample of an input pipeline", f"write {HELP}")
    with blame(path):
        return str(fit_stages(_rows(text)))


def _rows(text: str) -> list[MeasuredStage]:
    """Return the rows of a sample; raise FileError for missing columns, and what is no number."""
    table = csv.DictReader(io.StringIO(text))
    missing = [column for column in COLUMNS if column not in (table.fieldnames or ())]
    if missing:
        raise FileError(f"the column {missing[0]} is missing; write {HELP}")
    return [_row(line, number) for number, line in enumerate(table, 2)]


def _row(line: dict[str, str], number: int) -> MeasuredStage:
    values = []
    for column in COLUMNS[1:]:
        try:
            value = float(line[column])
        except (TypeError, ValueError):
            value = -1.0
        if not 0 < value < float("inf"):
            raise FileError(
                f"line {number} has {line[column]!r} in the column {column}; write a number above 0"
            )
        values.append(value)
    return MeasuredStage(line["stage"], *values)
