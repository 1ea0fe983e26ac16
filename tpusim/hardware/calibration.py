"""Factors by which a user's own measurements differ from predictions, and the file that has them.

A factor multiplies a time: 1.1 means that it takes 1.1 times as long as the chip's constants say.
`Chip.calibrated` divides efficiencies by their factor; `tpusim.calibration` learns factors.
"""

import math
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tpusim.base.errors import FileError, blame, nearest
from tpusim.base.shown_value import shown
from tpusim.base.text_files import path_of, read_text, write_file
from tpusim.base.text_table import padded
from tpusim.base.toml_text import toml_pairs
from tpusim.base.value_checks import is_number

COLLECTIVES = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute")
"""Collectives that have a factor of their own, as HLO names them."""

FACTORS = ("matmul", "attention", "vector", "hbm", "gather", *COLLECTIVES, "host")
"""The names of factors: work, bytes of HBM, rows picked by index, collectives, host."""

EFFICIENCIES: Mapping[str, tuple[str, ...]] = {
    "matmul": ("matmul_in_step",),
    "vector": ("vector_efficiency", "group_efficiency"),
    "hbm": ("hbm_efficiency", "hbm_read", "matmul_read"),
    "gather": ("gather_efficiency",),
}
"""The shares of a peak that each factor divides, where the chip's file states them.

The first of each bounds the factor; none of the others goes above 1."""

SECONDS: Mapping[str, tuple[str, ...]] = {
    "vector": ("vector_launch", "chip_launch", "lane_crossing", "group_fill"),
    "gather": ("scatter_element",),
    "host": ("dispatch", "turnaround"),
}
"""The seconds that each factor multiplies."""

MOST = 100.0
"""A factor beyond it, or below its inverse, is of something else than was predicted."""

WANTED = "a file that `tpusim calibrate` wrote, such as mine.toml"


@dataclass(frozen=True, slots=True)
class Factor:
    """Measured over predicted time of one kind of work.

    low, high: the interval that the truth is in; see `Calibration`.
    count: operations or runs that it was learnt from.
    """

    value: float = 1.0
    low: float = 1.0
    high: float = 1.0
    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Factors from a user's own measurements of one chip. Prints as a table.

    chip: the generation that was measured.
    factors: by name (`FACTORS`); those that are missing are 1. Their intervals are so wide that
        with odds of 9 to 1 all of them hold the truth.
    learnt_from: names of files, without their folders.
    date: on which it was learnt, such as `2026-01-31`.
    runs, operations: measured steps, and operations of profiles.
    spread: standard deviation of the logarithm of measured over predicted time that is left.
    notes: what was clipped or left out, in sentences.
    steps: the features of each measured run, and the `residual` that the factors leave over.
    name: of its file; empty before it is saved.
    """

    chip: str
    factors: tuple[tuple[str, Factor], ...]
    learnt_from: tuple[str, ...] = ()
    date: str = ""
    runs: int = 0
    operations: int = 0
    spread: float = 0.0
    notes: tuple[str, ...] = ()
    steps: tuple[tuple[tuple[str, str | float | bool], ...], ...] = field(default=(), repr=False)
    name: str = ""

    def factor(self, name: str) -> Factor:
        """Return a factor by its name; 1 if nothing was learnt of it."""
        return dict(self.factors).get(name, Factor())

    def save(self, path: str | Path) -> None:
        """Write the file that `[slice] calibration` names. Raise FileError if it cannot be."""
        file = path_of(path, "Calibration.save")
        with blame(str(path)):
            write_file(file, calibration_text(self).encode())

    @property
    def learnt(self) -> str:
        """What it was learnt from, in words."""
        counts = [(self.runs, "run"), (self.operations, "operation")]
        return " and ".join(f"{many:,} {what}{'s' * (many > 1)}" for many, what in counts if many)

    def __str__(self) -> str:
        rows = [("factor", "value", "interval", "count")]
        rows += [
            (name, f"{each.value:.3f}", f"{each.low:.3f} to {each.high:.3f}", f"{each.count:,}")
            for name, each in self.factors
        ]
        lines = [
            f"calibration of {self.chip} from {self.learnt or 'nothing'}: measured over predicted",
            *padded(rows, indent="  "),
            f"  left over: {self.spread:.1%}",
            *(f"  note: {note}" for note in self.notes),
        ]
        return "\n".join(lines)


def read_calibration(path: str | Path) -> Calibration:
    """Return the calibration of a file.

    Raise FileError for what cannot be read, is no such file, or has factors that cannot be.
    """
    file = path_of(path, "read_calibration")
    with blame(str(path)):
        try:
            found = tomllib.loads(read_text(file, "a calibration", WANTED))
        except tomllib.TOMLDecodeError as error:
            raise FileError(f"not valid TOML: {error}; give {WANTED}") from error
        return _read(found, file.name)


HEAD = (
    "# Measured over predicted time, by `tpusim calibrate`; "
    '[slice] calibration = "..." names this file.'
)
"""The first line of a calibration's file."""

_KEYS = ("chip", "date", "learnt_from", "runs", "operations", "spread", "notes")


def calibration_text(found: Calibration) -> str:
    """Return the text of a calibration's file; numbers have six digits."""
    lines = [HEAD, *_pairs({key: getattr(found, key) for key in _KEYS})]
    for name, factor in found.factors:
        lines += ["", f"[factors.{name}]", *_pairs(asdict(factor))]
    for step in found.steps:
        lines += ["", "[[steps]]", *_pairs(dict(step))]
    return "\n".join(lines) + "\n"


def _pairs(table: Mapping[str, Any]) -> Iterator[str]:
    short = {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in table.items()}
    return toml_pairs(short)


def _read(found: Mapping[str, Any], name: str) -> Calibration:
    _check_keys("", found, (*_KEYS, "factors", "steps"))
    factors, steps = found.get("factors", {}), found.get("steps", [])
    if not isinstance(factors, dict) or not isinstance(found.get("chip"), str):
        raise FileError(f"no chip or no table [factors]; give {WANTED}")
    for key in ("learnt_from", "notes"):
        _check(key, texts := found.get(key, []), _are(texts, str), "a list of texts")
    for key in ("runs", "operations", "spread"):
        number = found.get(key, 0)
        _check(key, number, is_number(number) and 0 <= number < math.inf, "a number from 0")
    _check("steps", steps, _are(steps, dict), "a table [[steps]] for each run")
    if not all(isinstance(value, str | float | int) for each in steps for value in each.values()):
        raise FileError("a table [[steps]] has a list or a table in it; write texts and numbers")
    return Calibration(
        chip=found["chip"],
        factors=tuple((kind, _factor(kind, table)) for kind, table in factors.items()),
        learnt_from=tuple(found.get("learnt_from", ())),
        date=str(found.get("date", "")),
        runs=int(found.get("runs", 0)),
        operations=int(found.get("operations", 0)),
        spread=float(found.get("spread", 0)),
        notes=tuple(found.get("notes", ())),
        steps=tuple(tuple(each.items()) for each in steps),
        name=name,
    )


def _check_keys(where: str, found: Iterable[str], known: tuple[str, ...]) -> None:
    for key in found:
        if key not in known:
            raise FileError(f"{where}unknown key {key!r}; {nearest(key, known)}")


def _check(key: str, value: Any, fits: bool, wanted: str) -> None:
    if not fits:
        raise FileError(f"{key} is {shown(value)}; write {wanted}")


def _are(values: Any, kind: type) -> bool:
    return isinstance(values, list) and all(isinstance(each, kind) for each in values)


def _factor(name: str, table: Any) -> Factor:
    if name not in FACTORS:
        raise FileError(f"unknown factor {name!r}; {nearest(name, FACTORS)}")
    given = isinstance(table, dict) and "value" in table
    _check(f"factors.{name}", table, given, "a table with value = 1.0")
    _check_keys(f"factors.{name}: ", table, Factor.__slots__)
    times = f"a number from {1 / MOST:g} to {MOST:g}, measured over predicted time"
    for key, value in table.items():
        counted = key == "count"
        least, most = (0, sys.maxsize) if counted else (1 / MOST, MOST)
        fits = is_number(value) and least <= value <= most
        _check(f"factors.{name}.{key}", value, fits, "a number from 0" if counted else times)
    value = float(table["value"])
    low, high = (float(table.get(key, value)) for key in ("low", "high"))
    if not low <= value <= high:
        raise FileError(f"factors.{name}: {value:g} is not between low and high; write all three")
    return Factor(value, low, high, int(table.get("count", 0)))


def least_factor(name: str, costs: Any) -> float:
    """Return the factor at which work reaches its physical bound.

    Matrix and vector units and HBM reach their peak, the links of a collective theirs.

    costs: the `CostConstants` of a chip without a calibration.
    """
    if name in COLLECTIVES:
        return float(costs.ici_efficiency)
    if name == "matmul":
        return float(costs.matmul_in_step * costs.matmul_efficiency)
    if name == "attention":
        return float(costs.attention_efficiency_forward * costs.vector_efficiency)
    return float(getattr(costs, EFFICIENCIES[name][0])) if name in EFFICIENCIES else 1 / MOST


def calibrated_costs(costs: Any, found: Calibration) -> dict[str, Any]:
    """Return the constants that a calibration changes; none goes beyond a physical bound."""
    changes: dict[str, Any] = {}
    bounded = {name: max(each.value, least_factor(name, costs)) for name, each in found.factors}
    for name, factor in bounded.items():
        for key in EFFICIENCIES.get(name, ()):
            if (share := getattr(costs, key)) is not None:
                changes[key] = min(1.0, share / factor)
        for key in SECONDS.get(name, ()):
            if (seconds := getattr(costs, key)) is not None:
                changes[key] = seconds * factor
    if (factor := bounded.get("matmul", 1.0)) < costs.matmul_in_step:
        rate = costs.matmul_efficiency * costs.matmul_in_step
        changes["matmul_efficiency"] = min(1.0, rate / factor)
    changes["calibrated_times"] = tuple(
        (name, factor) for name, factor in bounded.items() if name in (*COLLECTIVES, "attention")
    )
    return changes
