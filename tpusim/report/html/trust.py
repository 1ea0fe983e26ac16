"""Can I trust it: the measured runs like this one, and the sources of each number."""

from collections.abc import Mapping
from math import expm1
from typing import NamedTuple

from tpusim import __version__
from tpusim.accuracy import measured_errors
from tpusim.hardware import Chip, Sourced, chip_names, load_entries
from tpusim.results import PlanResult, Result

RUNS_SHOWN = 8
LEAST_ALIKE = 0.5
"""Measured runs on the page, and the likeness below which a run is not like a result."""


class RunLike(NamedTuple):
    """A measured run, how alike it is (1: in all), and by how much it was longer than predicted."""

    name: str
    family: str
    likeness: str
    error: str


def runs_like(result: Result) -> list[RunLike]:
    """Return the measured runs that are like a result, the most alike first."""
    if not isinstance(result, PlanResult) or result.error_range is None:
        return []
    found = measured_errors().most_alike(result.features, RUNS_SHOWN)
    return [
        RunLike(row.id, row.family, f"{likeness:.2f}", f"{expm1(row.residual):+.1%}")
        for row, likeness in found
        if likeness >= LEAST_ALIKE
    ]


class SourceRow(NamedTuple):
    """A number of the chip: its name, what the step used, its kind and its origin."""

    name: str
    value: str
    kind: str
    origin: str


def chip_sources(chip: Chip) -> list[SourceRow]:
    """Return the numbers of a chip of the catalogue, with their sources.

    What the compiler does for it is no number of the hardware.
    """
    if chip.name not in chip_names():
        return []
    return [
        SourceRow(name, *_value(chip, name, entry), entry.origin)
        for name, entry in load_entries(chip.name).items()
        if not name.startswith("compiler.")
    ]


def _value(chip: Chip, name: str, entry: Sourced) -> tuple[str, str]:
    """Return the text and the kind of a number, which the user may have changed."""
    value = chip_value(chip, name)
    if value is None or value == entry.value:
        return entry.text, entry.kind
    origin = "given by you" if chip.calibration is None else "calibrated"
    return f"{value:g}" if isinstance(value, int | float) else str(value), origin


def chip_value(chip: Chip, name: str) -> object:
    """Return a number of a chip by its name in the catalogue; None if it has no such field."""
    section, _, rest = name.partition(".")
    if not rest:
        return getattr(chip, name, None)
    found = getattr(chip, section, None)
    return found.get(rest) if isinstance(found, Mapping) else getattr(found, rest, None)


def conventions(result: Result) -> list[str]:
    """Return how the numbers of the page are counted, in sentences."""
    found = [f"{result.convention[0].upper()}{result.convention[1:]}."]
    if isinstance(result, PlanResult):
        found.append(
            "Seconds: tpusim's cost model with the chip's constants below; the compiler's "
            f"decisions are those of the lowering {result.plan.compiler.lowering}."
        )
    if defaults := ", ".join(text for _, text in result.defaults()):
        found.append(f"Defaults that decide: {defaults}.")
    found.append(f"tpusim {__version__}.")
    return found
