"""A table of measured serving runs, one row a run and one column a fact."""

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from tpusim.base.errors import FileError, PlanError, blame
from tpusim.base.shown_value import cut
from tpusim.base.text_files import read_text

NEEDED = ("id", "engine", "chip", "phase", "model")
A_TABLE = f"a CSV table with the columns {', '.join(NEEDED)}"
LARGEST = 2**26

TIMES = tuple(
    f"{time}_{share}_s"
    for time in ("ttft", "tpot", "itl", "e2e")
    for share in ("mean", "p50", "p99")
)
RATES = ("req_s", "input_tok_s", "output_tok_s", "total_tok_s", "img_s")
MEASURED = ("time_s", *TIMES, "ttft_out1_p50_s", "duration_s", *RATES)
"""Columns of measurements."""


@dataclass(frozen=True, slots=True)
class ServingRow:
    """One run: its configuration and what was measured, by column; what is not stated is empty."""

    cells: Mapping[str, str]

    @property
    def id(self) -> str:
        """The name of the row, which nothing but messages depends on."""
        return self.text("id")

    def text(self, column: str, default: str = "") -> str:
        """Return a cell; the default where it is empty."""
        return (self.cells.get(column) or "").strip() or default

    def number(self, column: str, default: float = 0.0) -> float:
        """Return a cell as a number; the default where it is empty.

        Raise PlanError for a cell that is no finite number above zero.
        """
        text = self.text(column)
        if not text:
            return default
        try:
            value = float(text)
        except ValueError as error:
            raise PlanError(f"{column} is {cut(text)!r}; write a number") from error
        if not math.isfinite(value) or value < 0:
            raise PlanError(f"{column} is {cut(text)}; write a finite number from 0 up")
        return value

    def whole(self, column: str, default: int = 0) -> int:
        """Return a cell as a whole number; the default where it is empty."""
        value = self.number(column, default)
        if value != int(value):
            raise PlanError(f"{column} is {value:g}; write a whole number")
        return int(value)

    def flag(self, column: str, default: bool) -> bool:
        """Return a cell that is 0 or 1; the default where it is empty."""
        return bool(self.whole(column, int(default)))

    @property
    def judged(self) -> bool:
        """True unless the table says that the row states too little."""
        return self.flag("gate", True)

    @property
    def family(self) -> str:
        """The series of configurations that the row belongs to."""
        return self.text("family", self.id)

    def measurements(self) -> dict[str, float]:
        """Return what was measured, by column."""
        return {name: self.number(name) for name in MEASURED if self.text(name)}


def read_table(path: Path) -> list[ServingRow]:
    """Return the rows of a table.

    Raise FileError if it is none, or lacks a column that is needed.
    """
    with blame(str(path)):
        text = read_text(path, "a table of serving runs", A_TABLE, LARGEST)
        reader = csv.DictReader(StringIO(text, newline=""), restval="")
        try:
            rows = [ServingRow({key: cell for key, cell in row.items() if key}) for row in reader]
        except csv.Error as error:
            raise FileError(f"no comma-separated values ({error}); give {A_TABLE}") from error
        if missing := [name for name in NEEDED if name not in (reader.fieldnames or ())]:
            raise FileError(f"no column {missing[0]!r}; give {A_TABLE}")
        if not rows:
            raise FileError(f"no rows; give {A_TABLE}")
        return rows
