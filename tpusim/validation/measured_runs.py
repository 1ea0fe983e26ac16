"""Measured runs and the table they come from: a CSV file or a DataFrame, one run a row.

The fields of `MeasuredRun` are the columns of the table; docs/validation.md describes them.
"""

import csv
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, get_type_hints

from tpusim.base.errors import FileError, nearest
from tpusim.base.text_files import read_text

if TYPE_CHECKING:
    import pandas as pd

LARGEST_TABLE_BYTES = 2**26
LARGEST_INTEGER_CELL = 10**9
LONGEST_QUOTED_CELL = 60
CSV_WANTED = "the path of a CSV file"
TRUTH_VALUES = {"0": False, "1": True, "false": False, "true": True}
EXPECTED_CELL = {
    int: f"a whole number from 1 to {LARGEST_INTEGER_CELL:,}",
    float: "a number above 0",
    bool: "0 or 1",
    str: "a text",
}

TableRow: TypeAlias = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """A run as its source describes it. Text is verbatim; 0 stands for a number not given.

    step_s: seconds per step.
    params_b: parameters in billions.
    mfu_half_causal_pct: measured MFU in percent.
    mesh: `axis=size;...`.

    docs/validation.md explains the other columns.
    """

    id: str
    chip: str
    topology: str
    n_layers: int
    d_model: int
    n_heads: int
    d_ff: int
    vocab: int
    seq_len: int
    global_batch: int
    mesh: str
    step_s: float
    num_slices: int = 1
    num_chips: int = 0
    model: str = ""
    params_b: float = 0.0
    n_kv_heads: int = 0
    head_dim: str = ""
    mlp_matrices: int = 3
    experts: int = 0
    experts_per_token: int = 0
    capacity_factor: float = 0.0
    expert_exchange: str = ""
    causal: bool = True
    mesh_counts: str = ""
    remat: str = "full"
    save: str = ""
    offload: str = ""
    vocab_tiles: int = 0
    framework: str = ""
    dtype: str = "bf16"
    optimizer: str = ""
    attention: str = ""
    step_is: str = ""
    mfu_half_causal_pct: float = 0.0
    confidence: str = ""
    date: str = ""
    source: str = ""
    notes: str = ""


COLUMN_TYPES: Mapping[str, Any] = get_type_hints(MeasuredRun)
REQUIRED_COLUMNS = tuple(field.name for field in fields(MeasuredRun) if field.default is MISSING)


def read_rows(path: Path) -> tuple[list[str], list[TableRow]]:
    """Return the header and the rows of a CSV file. Raise FileError if it is not one."""
    text = read_text(
        path, "a table of runs, where a run is one line", CSV_WANTED, LARGEST_TABLE_BYTES
    )
    if "\0" in text:
        raise FileError(f"not a text file (it holds NUL bytes); give {CSV_WANTED}")
    if not text.strip():
        raise FileError("the file is empty; write a header of column names and a row per run")
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


def frame_rows(frame: "pd.DataFrame") -> tuple[list[str], list[TableRow]]:
    """Return the header and the rows of a DataFrame such as `pandas.read_csv` returns."""
    if not hasattr(frame, "to_dict") or not hasattr(frame, "columns"):
        raise FileError(
            f"validate takes a DataFrame with one row per run, not a {type(frame).__name__}; "
            "write ts.validate(pandas.read_csv('runs.csv'))"
        )
    header = [str(name).strip() for name in frame.columns]
    rows: Iterable[Sequence[Any]] = frame.itertuples(index=False, name=None)
    return header, [dict(zip(header, map(_cell_text, row), strict=True)) for row in rows]


def _cell_text(value: Any) -> str:
    """Return a cell as a CSV file would hold it: integers without a point, missing cells empty."""
    if value is None or value != value or str(value) == "<NA>":
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def measured_runs(
    header: Sequence[str], rows: Sequence[TableRow]
) -> tuple[tuple[MeasuredRun, ...], tuple[str, ...]]:
    """Return the runs of a table, and the columns that nothing reads.

    An empty cell counts as absent. Raise FileError for a missing, repeated or misspelt column, an
    empty table, a cell of the wrong type, and an id that occurs twice.
    """
    unread = _check_header(header)
    if not rows:
        raise FileError("the table has a header and no runs; write one row per run")
    runs = tuple(_parse_run(row, f"row {number}") for number, row in enumerate(rows, 1))
    repeated = [name for name, count in Counter(run.id for run in runs).items() if count > 1]
    if repeated:
        raise FileError(f"the id {_quoted(repeated[0])} is in several rows; give each run its own")
    return runs, unread


def _check_header(header: Sequence[str]) -> tuple[str, ...]:
    repeated = [name for name, count in Counter(header).items() if count > 1]
    if repeated:
        raise FileError(f"the column {_quoted(repeated[0])} is in the header twice; remove one")
    unread = tuple(name for name in header if name not in COLUMN_TYPES)
    for name in REQUIRED_COLUMNS:
        if name not in header:
            raise FileError(f"the column {name} is missing; {_rename_hint(name, unread)}")
    for name in unread:
        close = nearest(name, [known for known in COLUMN_TYPES if known not in header])
        if close.startswith("did you mean"):
            raise FileError(f"no column is called {_quoted(name)}; {close}")
    return unread


def _rename_hint(name: str, unread: Sequence[str]) -> str:
    """Return the column that may have been meant, or all columns that are required."""
    close = nearest(name, [column[:LONGEST_QUOTED_CELL] for column in unread])
    if close.startswith("did you mean"):
        return f"rename the column that you mean ({close.removeprefix('did you mean ')}"[:-1] + ")"
    return (
        f"the columns that every run needs are {', '.join(REQUIRED_COLUMNS)}, separated by commas"
    )


def _parse_run(row: TableRow, where: str) -> MeasuredRun:
    where = f"{where} ({_quoted(row['id'])})" if row["id"] else where
    return MeasuredRun(
        **{
            name: _parse_cell(name, row.get(name, ""), where)
            for name in COLUMN_TYPES
            if name in REQUIRED_COLUMNS or row.get(name, "")
        }
    )


def _parse_cell(name: str, text: str, where: str) -> Any:
    """Return a cell as the type of its column."""
    kind = COLUMN_TYPES[name]
    if kind is str and text and text.isprintable():
        return text
    if kind is bool and text.lower() in TRUTH_VALUES:
        return TRUTH_VALUES[text.lower()]
    if kind in (int, float) and (number := _parse_number(text, whole=kind is int)):
        return number
    found = f"is {_quoted(text)}" if text else "is empty"
    raise FileError(f"{where}: {name} {found}; write {EXPECTED_CELL[kind]}")


def _parse_number(text: str, *, whole: bool) -> int | float | None:
    """Return the positive number that a cell holds, or None if it holds none."""
    try:
        number = float(text)
    except ValueError:
        return None
    if not math.isfinite(number) or number <= 0:
        return None
    if not whole:
        return number
    return int(number) if number.is_integer() and number <= LARGEST_INTEGER_CELL else None


def _quoted(text: str) -> str:
    return repr(text if len(text) <= LONGEST_QUOTED_CELL else f"{text[:LONGEST_QUOTED_CELL]}...")
