"""The residuals of the measured runs: `residuals.csv`, which is part of the package.

    python -m tpusim.validation.residual_table FOLDER

writes it anew, which is due whenever predictions change.
"""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from io import StringIO
from math import isfinite, log
from pathlib import Path
from typing import Any, TypeAlias

from tpusim.accuracy.run_features import RunFeatures
from tpusim.base.errors import FileError, PlanError

RESIDUALS_FILE = "residuals.csv"
DIGITS = 6
"""Significant digits of the numbers in the file."""

FEWEST_FAMILIES = 4
"""The least n for which 80 % of n + 1 families are no more than n."""

FEATURES = {f.name: f.type for f in fields(RunFeatures)}
"""The columns of features."""

COLUMNS = ("id", "family", *FEATURES, "residual")


@dataclass(frozen=True, slots=True)
class Residual:
    """A measured run: its features, and how far off its prediction is.

    id: of the run.
    family: equal for the runs of one model by one framework, whose errors are not independent.
    residual: the natural logarithm of measured over predicted time.
    """

    id: str
    family: str
    features: RunFeatures
    residual: float

    @property
    def framework(self) -> str:
        """The framework, with which the name of a family begins."""
        return self.family.partition(" ")[0]

    @property
    def chip(self) -> str:
        """The generation."""
        return self.features.chip

    def within(self, low: float, high: float) -> bool:
        """Return True if measured over predicted time is from `low` to `high`."""
        return log(low) <= self.residual <= log(high)


OWN = "your own"
"""The family of the runs that a calibration was learnt from."""

Facts: TypeAlias = tuple[tuple[str, str | float | bool], ...]
"""The features of a run and its residual, by name."""


def own_residuals(steps: Iterable[Facts]) -> tuple[Residual, ...]:
    """Return what a calibration leaves over of the runs that it was learnt from, as one family.

    Raise FileError for facts that are not those of a run.
    """
    try:
        found = []
        for number, facts in enumerate(steps):
            values: dict[str, Any] = dict(facts)
            residual = float(values.pop("residual"))
            found.append(Residual(f"{OWN} {number}", OWN, RunFeatures(**values), residual))
        return tuple(found)
    except (PlanError, KeyError, TypeError, ValueError) as error:
        raise FileError(
            f"a step of the calibration cannot be read ({error}); learn it again"
        ) from error


@cache
def residuals() -> tuple[Residual, ...]:
    """Return the residuals that come with the package."""
    return read_residuals((resources.files("tpusim.accuracy") / RESIDUALS_FILE).read_text("utf-8"))


def residuals_path() -> Path:
    """Return the path of the package's file."""
    return Path(__file__).with_name(RESIDUALS_FILE)


def read_residuals(text: str) -> tuple[Residual, ...]:
    """Return the residuals that a CSV text holds. Raise FileError if it is not such a text."""
    lines = csv.DictReader(StringIO(text))
    if tuple(lines.fieldnames or ()) != COLUMNS:
        raise FileError(f"a table of residuals has the columns {', '.join(COLUMNS)}")
    rows = tuple(_read_row(row) for row in lines)
    if len(families(rows)) < FEWEST_FAMILIES:
        raise FileError(f"a table of residuals has at least {FEWEST_FAMILIES} families of runs")
    return rows


def residuals_text(rows: Iterable[Residual]) -> str:
    """Return the text of the file, in CSV."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        features = (_written(getattr(row.features, name)) for name in FEATURES)
        writer.writerow((row.id, row.family, *features, _written(row.residual)))
    return text.getvalue()


def _written(value: object) -> object:
    if isinstance(value, bool):
        return int(value)
    return f"{value:.{DIGITS}g}" if isinstance(value, float | int) else value


def _read_row(row: Mapping[str, str]) -> Residual:
    try:
        values: dict[str, Any] = {
            name: _READERS[kind](row[name]) for name, kind in FEATURES.items()
        }
        features = RunFeatures(**values)
        residual = float(row["residual"])
    except (PlanError, TypeError, ValueError) as error:
        raise FileError(f"the residual of {row['id']!r} cannot be read: {error}") from error
    if not isfinite(residual):
        raise FileError(f"the residual of {row['id']!r} is {residual!r}; write a finite number")
    return Residual(row["id"], row["family"], features, residual)


_READERS: Mapping[Any, Any] = {str: str, bool: lambda cell: bool(int(cell)), float: float}


def families(rows: Sequence[Residual]) -> tuple[str, ...]:
    """Return the families of some runs, each once, in the order of the rows."""
    return tuple(dict.fromkeys(row.family for row in rows))
