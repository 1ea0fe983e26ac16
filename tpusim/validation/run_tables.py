"""Tables of measured runs: a CSV file or a DataFrame whose columns are keys of a run file."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from tpusim.base.csv_cells import csv_rows
from tpusim.base.errors import FileError, nearest
from tpusim.base.frame_values import is_missing, python_value
from tpusim.base.shown_value import shown
from tpusim.base.text_files import read_text
from tpusim.models import ARCHITECTURES
from tpusim.runfile.schema import FIELDS, KEYS
from tpusim.runfile.toml_tables import put, toml_value

if TYPE_CHECKING:
    import pandas as pd

LARGEST_TABLE_BYTES = 2**26
CSV_WANTED = "a folder of run files, or the path of a CSV file"
SECTIONS = ("slice", "model", "plan", "input", "measured")
NEEDED = ("id", "measured.step_s")
_LISTED = "docs/run_file.md lists them"
EARLIER = ("step_s", "n_layers", "d_model", "global_batch")
"""Columns that tables had before they had the keys of a run file."""

TableRow: TypeAlias = Mapping[str, str]


def read_rows(path: Path) -> tuple[list[str], list[TableRow]]:
    """Return the header and the rows of a CSV file. Raise FileError if it is not one."""
    text = read_text(
        path, "a table of runs, where a run is one line", CSV_WANTED, LARGEST_TABLE_BYTES
    )
    if not text.strip():
        raise FileError("the file is empty; write a header of column names and a row per run")
    header, *rows = csv_rows(text)
    return header, [dict(zip(header, row, strict=True)) for row in rows]


def frame_rows(frame: "pd.DataFrame") -> tuple[list[str], list[TableRow]]:
    """Return the header and the rows of a DataFrame such as `pandas.read_csv` returns."""
    header = [str(name).strip() for name in frame.columns]
    rows: Iterable[Sequence[Any]] = frame.itertuples(index=False, name=None)
    return header, [dict(zip(header, map(_cell_text, row), strict=True)) for row in rows]


def _cell_text(value: Any) -> str:
    """Return a cell as a CSV file would hold it: integers without a point, missing cells empty."""
    value = python_value(value)
    if isinstance(value, list | tuple | dict):
        return str(value)
    if value is None or is_missing(value):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def unread_columns(header: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that are no keys of a run file.

    Raise FileError for a column that is missing, there twice, misspelt or of the earlier form.
    """
    repeated = [name for name, count in Counter(header).items() if count > 1]
    if repeated:
        raise FileError(f"the column {shown(repeated[0])} is in the header twice; remove one")
    earlier = [name for name in EARLIER if name in header]
    if earlier and "measured.step_s" not in header:
        raise FileError(
            f"the column {earlier[0]} is of the earlier form of such tables; the columns are now "
            "the keys of a run file: id, slice.chip, slice.topology, model.embed, "
            "plan.global_batch, plan.mesh.fsdp, measured.step_s (docs/validation.md)"
        )
    unread = tuple(name for name in header if not _is_key(name))
    for name in unread:
        section, _, key = name.partition(".")
        within = [known for known in _columns() if known.startswith(f"{section}.")]
        if within:
            near = nearest(key, [known.partition(".")[2] for known in within], _LISTED)
            raise FileError(f"the column {shown(name)} is no key of [{section}]; {near}")
        close = nearest(name, [known for known in _columns() if known not in header])
        if close.startswith("did you mean"):
            raise FileError(f"no column is called {shown(name)}; {close}")
    for name in NEEDED:
        if name not in header:
            raise FileError(
                f"the column {name} is missing; a table has the columns id and measured.step_s, "
                "and keys of a run file such as slice.chip, model.name and plan.mesh.fsdp, "
                "separated by commas"
            )
    return unread


def _is_key(name: str) -> bool:
    """Return True for a column that is read: `id`, a key, or an entry of a table of a key."""
    parts = name.split(".")
    return any(".".join(parts[:count]) in _columns() for count in (1, 2, 3))


@cache
def _columns() -> Mapping[str, Any]:
    """Return the columns of a table, and the type of each."""
    found: dict[str, Any] = {"id": str}
    for kind in ARCHITECTURES.values():
        names = (field.name for field in fields(kind))  # type: ignore[arg-type]
        found |= {f"model.{name}": Any for name in ("architecture", *names)}
    for section in SECTIONS:
        found |= {f"{section}.{key}": kind for key, kind in FIELDS[section].items()}
        if section in KEYS:
            found |= {f"{section}.{path}": Any for path in KEYS[section].paths}
    return found


def row_tables(row: TableRow) -> dict[str, Any]:
    """Return the tables of a run file that a row is; an empty cell is a key that is left out.

    A cell is text where its key takes text, and otherwise a value of TOML, or else text.
    """
    tables: dict[str, Any] = {}
    for name, cell in row.items():
        if cell and name != "id" and _is_key(name):
            value = cell if _columns().get(name) is str else toml_value(cell)
            tables = put(tables, name.split("."), value, name)
    return tables
