"""How much HBM the compiler takes of what a plan is predicted to need, from compiled programs.

The residual of a program is the logarithm of the bytes that the compiler took over those that were
predicted. Of a program that it refused these are the bytes of its last attempt, so that what it
saves near the limit, by recomputing, is in the residuals of plans near the limit. The programs are
those that are kept to judge by: `memory_residuals.csv`, written by
experiments/plan_vs_compiler/residuals.py.

A program weighs `FLOOR + (1 - FLOOR) exp(-d^2 / 2)` for its distance d from the plan, which is the
number of traits that only one of both has. One more, which nobody has seen, is half below and half
above all others (Vovk et al. 2005). The odds that a plan fits are the weight of the programs with
which it would fit, were it off as they were.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from io import StringIO
from math import exp, isfinite, log
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import FileError
from tpusim.base.units import format_bytes

Floats: TypeAlias = NDArray[np.float64]

HBM_RESIDUALS_FILE = "memory_residuals.csv"
HBM_COVERAGE = 0.9
"""The fraction of plans whose program takes what is in their range."""

FLOOR = 0.1
"""The weight of a program that is like the plan in nothing."""

COLUMNS = ("id", "chip", "devices", "traits", "fill", "refused", "residual")


@dataclass(frozen=True, slots=True, kw_only=True)
class HbmFeatures:
    """What makes the errors of two plans in HBM alike.

    chip: the generation.
    devices: of the slice.
    traits: what decides which buffers there are, in words, such as `experts` or `labels by index`.
    fill: what the plan needs over what the compiler can use.
    """

    chip: str
    devices: int
    traits: frozenset[str]
    fill: float


@dataclass(frozen=True, slots=True)
class HbmResidual:
    """A compiled program. residual: the logarithm of the bytes it took over those predicted.

    refused: True if the compiler refused it.
    """

    id: str
    features: HbmFeatures
    refused: bool
    residual: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HbmOdds:
    """What the compiler takes of the HBM that a plan is predicted to need.

    low, high: the factors between which it took, of 90 % of such plans.
    fits: the fraction of such plans that fit.
    support: programs like it; one with the same traits counts one.
    unlike: what no compared program had, in words; empty if there were others like it.
    """

    low: float
    high: float
    fits: float
    support: float
    unlike: tuple[str, ...] = ()

    @property
    def of_hundred(self) -> int:
        """Of 100 such plans, those that fit: 1 to 99, as nothing is certain."""
        return min(99, max(1, int(100 * self.fits + 0.5)))

    @property
    def counted(self) -> str:
        """The odds in words: `97 of 100 such plans fit`."""
        what = "compared plans" if self.unlike else "such plans"
        unlike = f" (none has {' or '.join(self.unlike)})" if self.unlike else ""
        return f"{self.of_hundred} of 100 {what} fit{unlike}"

    def of(self, need_bytes: float) -> tuple[float, float]:
        """Return the ends for a predicted need, in bytes."""
        return self.low * need_bytes, self.high * need_bytes

    def words(self, need_bytes: float) -> str:
        """Return the odds and the range for a predicted need, in words."""
        low, high = map(format_bytes, self.of(need_bytes))
        part = f"{100 * HBM_COVERAGE:.0f} % of them"
        return f"{self.counted}; the compiler takes {low} to {high} in {part}"


class HbmErrors:
    """The residuals of compiled programs, and the odds that follow from them."""

    def __init__(self, rows: Sequence[HbmResidual]) -> None:
        self.rows = tuple(sorted(rows, key=lambda row: row.residual))
        self.traits = tuple(sorted({name for row in rows for name in row.features.traits}))
        self.chips = frozenset(row.features.chip for row in rows)
        self.most_devices = max(row.features.devices for row in rows)
        self._ids = np.array([row.id for row in self.rows])
        self._residuals = np.array([row.residual for row in self.rows])
        self._has = np.array([self._traits_of(row.features) for row in self.rows])

    def odds(self, features: HbmFeatures, without: str = "") -> HbmOdds:
        """Return the odds of a plan. without: the id of a program that does not count."""
        kept = self._ids != without
        alike = self._likeness(features) * kept
        weights = (FLOOR + (1 - FLOOR) * alike) * kept
        below = (np.cumsum(weights) + 0.5) / (weights.sum() + 1)
        low, high = np.searchsorted(below, ((1 - HBM_COVERAGE) / 2, (1 + HBM_COVERAGE) / 2))
        fitting = int(np.searchsorted(self._residuals, -log(features.fill), side="right"))
        return HbmOdds(
            low=exp(self._residuals[low]),
            high=exp(self._residuals[min(high, len(self.rows) - 1)]),
            fits=float(below[fitting - 1] if fitting else 0.5 / (weights.sum() + 1)),
            support=float(alike.sum()),
            unlike=tuple(self._unlike(features)),
        )

    def left_out(self) -> Iterator[tuple[HbmResidual, HbmOdds]]:
        """Yield each program with its odds, made without it."""
        yield from ((row, self.odds(row.features, row.id)) for row in self.rows)

    def _likeness(self, features: HbmFeatures) -> Floats:
        """Return exp(-d^2 / 2) for the distance of each program."""
        others = np.count_nonzero(self._has != self._traits_of(features), axis=1)
        others += len(features.traits.difference(self.traits))
        alike: Floats = np.exp(-(others**2) / 2)
        return alike

    def _traits_of(self, features: HbmFeatures) -> list[bool]:
        return [name in features.traits for name in self.traits]

    def _unlike(self, features: HbmFeatures) -> Iterator[str]:
        """Yield what a plan has and no compared one, in words."""
        yield from sorted(features.traits.difference(self.traits))
        if features.chip not in self.chips:
            yield f"{features.chip} chips"
        if features.devices > self.most_devices:
            yield f"more than {self.most_devices:,} devices"


def hbm_residuals_path() -> Path:
    """Return the path of the package's file."""
    return Path(__file__).with_name(HBM_RESIDUALS_FILE)


def read_hbm_residuals(text: str) -> tuple[HbmResidual, ...]:
    """Return the residuals that a CSV text holds. Raise FileError if it is not such a text."""
    lines = csv.DictReader(StringIO(text))
    if tuple(lines.fieldnames or ()) != COLUMNS:
        raise FileError(f"a table of residuals of HBM has the columns {', '.join(COLUMNS)}")
    rows = tuple(map(_read_row, lines))
    if not rows:
        raise FileError("a table of residuals of HBM has a row for each compiled program")
    return rows


def hbm_residuals_text(rows: Iterable[HbmResidual]) -> str:
    """Return the text of the file, in CSV."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        found = row.features
        traits = ";".join(sorted(found.traits))
        about = (row.id, found.chip, found.devices, traits, f"{found.fill:.5g}")
        writer.writerow((*about, int(row.refused), f"{row.residual:.5f}"))
    return text.getvalue()


def _read_row(row: Mapping[str, str]) -> HbmResidual:
    try:
        features = HbmFeatures(
            chip=row["chip"],
            devices=int(row["devices"]),
            traits=frozenset(filter(None, row["traits"].split(";"))),
            fill=float(row["fill"]),
        )
        residual, refused = float(row["residual"]), bool(int(row["refused"]))
    except (TypeError, ValueError) as error:
        raise FileError(f"the residual of {row['id']!r} cannot be read: {error}") from error
    if not (isfinite(residual) and isfinite(features.fill) and features.fill > 0):
        raise FileError(
            f"the residual of {row['id']!r} is no finite number, or its fill not above 0"
        )
    return HbmResidual(row["id"], features, refused, residual)


@cache
def hbm_errors() -> HbmErrors:
    """Return the residuals that come with the package, ready for odds."""
    text = (resources.files("tpusim.accuracy") / HBM_RESIDUALS_FILE).read_text("utf-8")
    return HbmErrors(read_hbm_residuals(text))


@lru_cache(maxsize=64)
def hbm_odds(features: HbmFeatures) -> HbmOdds:
    """Return the odds of a plan from the residuals that come with the package.

    They are kept, as the summary, the files and the columns of a sweep ask for those of one result
    several times.
    """
    return hbm_errors().odds(features)
