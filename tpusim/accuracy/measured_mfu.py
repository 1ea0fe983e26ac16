"""The MFU that published runs reach on a chip, to judge a predicted one by.

The MFU of a measured run is the predicted one of its residual's row times predicted over measured
time, so its FLOPs are counted as those of a plan: the model's alone, against the bf16 peak. The
table is `residuals.csv`, which `python -m tpusim.validation.residual_table` writes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp
from typing import Any, TypeAlias

import numpy as np

from tpusim.accuracy.residuals import Residual, residuals
from tpusim.accuracy.run_features import RunFeatures

FEWEST_RUNS, FEWEST_PROGRAMS = 4, 2
"""Runs, and families of them, below which nothing is compared: never with one program alone."""

LIKE_SIZE = 3.0
"""The largest factor between the parameters of models of like size."""

MIDDLE = 0.8
MANY_RUNS = 10
"""The part of the runs between the ends, and the least number of which not all are between."""


Alike: TypeAlias = Callable[[Residual], bool]
"""Whether a measured run is compared with a predicted one."""


@dataclass(frozen=True, slots=True)
class MeasuredMfu:
    """The MFUs of published runs, as fractions of the bf16 peak.

    low, high: ends of the middle 80 %; of fewer than 10 runs, the smallest and the largest.
    runs: how many they are.
    of: what the runs have in common, in words: `dense models of like size on v5p`.
    """

    low: float
    high: float
    runs: int
    of: str

    def __str__(self) -> str:
        part = "middle 80% of " if self.runs >= MANY_RUNS else ""
        return f"published {self.low:.0%} to {self.high:.0%} ({part}{self.runs} runs of {self.of})"

    def facts(self) -> dict[str, Any]:
        """Return the range as plain data."""
        return {"low": self.low, "high": self.high, "runs": self.runs, "of": self.of}


def measured_mfu_of(row: Residual) -> float:
    """Return the MFU of a measured run, a fraction."""
    return row.features.mfu * exp(-row.residual)


def measured_mfu(features: RunFeatures) -> MeasuredMfu | None:
    """Return the MFUs of the published runs that a run is compared with; None if there are few.

    They are on its chip, of its kind (experts or not, narrow matmuls or not) and of like size; or
    else of its kind; or else on its chip.
    """
    if not features.transformer:
        return None
    known = [
        row
        for row in residuals()
        if row.chip == features.chip and row.features.quantised == features.quantised
    ]
    narrow = " with int8 or fp8 matmuls" * features.quantised
    kind = f"{'models with experts' if features.experts else 'dense models'}{narrow}"
    chip = features.chip
    alike: tuple[tuple[str, Alike], ...] = (
        (f"{kind} of like size on {chip}", lambda row: _like(row, features)),
        (f"{kind} on {chip}", lambda row: _kind(row, features)),
        (f"all transformers{narrow} on {chip}", lambda row: True),
    )
    for of, test in alike:
        if (found := _range(known, of, test)) is not None:
            return found
    return None


def measured_mfu_on(chip: str) -> MeasuredMfu | None:
    """Return the MFUs of all published bf16 runs on a chip; None if there are few."""
    known = [row for row in residuals() if row.chip == chip and not row.features.quantised]
    return _range(known, f"transformers on {chip}", lambda row: True)


def _kind(row: Residual, features: RunFeatures) -> bool:
    return row.features.experts == features.experts


def _like(row: Residual, features: RunFeatures) -> bool:
    """Return True for a run of the same kind and of like size."""
    times = row.features.params / features.params
    return _kind(row, features) and 1 / LIKE_SIZE <= times <= LIKE_SIZE


def _range(rows: Sequence[Residual], of: str, alike: Alike) -> MeasuredMfu | None:
    """Return the range of the rows that are alike; None if they are few, or of one program."""
    kept = [row for row in rows if alike(row)]
    if len(kept) < FEWEST_RUNS or len({row.family for row in kept}) < FEWEST_PROGRAMS:
        return None
    shares = np.array([measured_mfu_of(row) for row in kept])
    cut = (1 - MIDDLE) / 2 if len(kept) >= MANY_RUNS else 0.0
    low, high = np.quantile(shares, [cut, 1 - cut])
    return MeasuredMfu(float(low), float(high), len(kept), of)
