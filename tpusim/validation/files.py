"""The outcome on disk: `validation.csv`, `validation.json` and `runs.csv`."""

import csv
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import Any

from tpusim.errors import FileError
from tpusim.validation.outcome import Outcome, families
from tpusim.validation.validation import Validation

DIGITS = 12
"""Decimals of fractions and seconds in tables: the engine's picoseconds."""

NARROW = ("id", "measured_s", "predicted_s", "error", "status", "reason")


def write_validation(validation: Validation, folder: Path | str) -> None:
    """Write the three files; the same validation gives the same bytes.

    Each file is written beside its place and then moved there. `FileError` where that fails.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in rendered(validation).items():
            beside = folder / f".{name}.{os.getpid()}"
            beside.write_text(content, "utf-8")
            beside.replace(folder / name)
    except OSError as error:
        raise FileError(
            f"{folder} cannot be written: {error.strerror}; give a folder that can be written to"
        ) from error


def rendered(validation: Validation) -> Mapping[str, str]:
    """The content of each file, by name."""
    columns = frame_columns(validation.outcomes)
    return {
        "validation.csv": _csv({name: columns[name] for name in NARROW}),
        "validation.json": f"{json.dumps(validation.statistics, indent=2)}\n",
        "runs.csv": _csv(columns),
    }


def frame_columns(outcomes: Sequence[Outcome]) -> dict[str, list[Any]]:
    """The table of runs by column; a column a label of the breakdown, zero where a run has none."""
    labels = list(dict.fromkeys(label for one in outcomes for label in one.shares))
    shares = {
        f"share {label}": [one.shares.get(label, 0.0) if one.ok else None for one in outcomes]
        for label in labels
    }
    rows = [_row(one) for one in outcomes]
    return {name: [row[name] for row in rows] for name in rows[0]} | shares


def _row(one: Outcome) -> dict[str, Any]:
    return {
        "id": one.run.id,
        "chip": one.run.chip,
        "families": ", ".join(families(one.run)),
        "measured_s": one.run.step_s,
        "predicted_s": one.predicted_s,
        "error": one.error,
        "status": one.status,
        "reason": one.reason,
        "mfu": one.mfu,
        "measured_mfu": one.measured_mfu,
        "hfu": one.hfu,
        "tflops_per_device": one.tflops_per_device,
        "measured_tflops_per_device": one.measured_tflops_per_device,
        "guess_s": one.guess_s,
        "guess_error": one.guess_error,
        "fits": one.fits,
        "hbm_peak_bytes": one.hbm_peak_bytes,
        "notes": "; ".join(one.notes),
    }


def _csv(columns: Mapping[str, Sequence[Any]]) -> str:
    text = StringIO()
    cells: Iterable[Iterable[Any]] = zip(*columns.values(), strict=True)
    rows = ([_cell(value) for value in row] for row in cells)
    csv.writer(text, lineterminator="\n").writerows(chain([list(columns)], rows))
    return text.getvalue()


def _cell(value: Any) -> Any:
    return round(value, DIGITS) if isinstance(value, float) else value
