"""The fits as tables: Markdown for README.md and the terminal, and rows of `calibration.csv`."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from io import StringIO
from typing import Any

import numpy as np
from fitted_constants import ESTIMATED, WHOLE_RUNS, Group
from fitting import FLAT, Floats, Surface
from matmul_estimates import OVERLAP, SHARE, catalogue, matmul_surface
from run_errors import Observation, fine_axes, observations, simulated_surface, today

from tpusim.base.units import format_seconds
from tpusim.hardware.chip import COST_UNITS
from tpusim.validation.statistics import error_statistics

SIGNIFICANT = 2.0
"""A catalogue value is wrong if its loss is this many standard errors above the least."""


@dataclass(frozen=True)
class Fit:
    """A group of constants, and the errors of its observations over their values."""

    group: Group
    seen: tuple[Observation, ...]
    surface: Surface

    @cached_property
    def best(self) -> dict[str, float]:
        """The fitted values."""
        return self.surface.values(self.surface.best())

    @cached_property
    def best_by_run(self) -> dict[str, float]:
        """The fitted values where each observation counts one, and not each family."""
        alone = replace(self.surface, families=tuple(each.name for each in self.seen))
        return alone.values(alone.best())

    @property
    def catalogue_excess(self) -> float:
        """How far the loss of the catalogue is above the least, as a fraction of that."""
        return self.surface.excess(self.surface.point(self.group.catalogue))

    @property
    def catalogue_significance(self) -> float:
        """How many standard errors the loss of the catalogue is above the least."""
        return self.surface.significance(self.surface.point(self.group.catalogue))

    @property
    def confirmed(self) -> bool:
        """True if the catalogue is in the flat region, or no worse than chance explains."""
        return self.catalogue_excess <= FLAT or self.catalogue_significance <= SIGNIFICANT

    def errors(self, **changed: float) -> Floats:
        """Return the errors with the fitted values, but for those that are given."""
        return self.surface.errors_at(self.surface.point(self.best | changed))

    def left_out(self, by_family: bool) -> Floats:
        """Return the error of each observation, fitted without it or without its family.

        Where no other family is left, constants are neutral.
        """
        names = tuple(each.name for each in self.seen)
        neutral = {each.name: each.neutral for each in self.group.constants}
        groups = self.surface.families if by_family else names
        return self.surface.left_out(groups, self.surface.point(neutral))


def fitted(group: Group) -> Fit:
    """Simulate the runs of a group over its constants' values."""
    seen = observations(group)
    return Fit(group, seen, simulated_surface(group, seen).refined(fine_axes(group)))


def all_fits() -> tuple[Fit, ...]:
    """Return the fits of all constants that are fitted to whole runs."""
    return tuple(map(fitted, WHOLE_RUNS))


def rows(fits: Sequence[Fit]) -> Iterator[dict[str, Any]]:
    """Yield a row per constant, SI units and fractions."""
    for fit in fits:
        spread = fit.surface.standard_errors()
        for constant in fit.group.constants:
            name = constant.name
            low, high = fit.surface.flat(name)
            sizes = {
                "neutral": fit.errors(**{name: constant.neutral}),
                "catalogue": fit.errors(**fit.group.catalogue),
                "fitted": fit.errors(),
                "run_left_out": fit.left_out(by_family=False),
                "family_left_out": fit.left_out(by_family=True),
            }
            yield {
                "constant": name,
                "chips": " ".join(fit.group.chips),
                "catalogue": fit.group.catalogue[name],
                "fitted": fit.best[name],
                "fitted_by_run": fit.best_by_run[name],
                "lower_bound": constant.values[0],
                "upper_bound": constant.values[-1],
                "flat_from": low,
                "flat_to": high,
                "standard_error": spread[name],
                "neutral": constant.neutral,
                "observations": len(fit.seen),
                "families": len(set(fit.surface.families)),
                "catalogue_loss_excess": fit.catalogue_excess,
                "catalogue_significance": fit.catalogue_significance,
                "neutral_significance": fit.surface.significance(
                    fit.surface.point(fit.best | {name: constant.neutral})
                ),
                **{f"mean_{key}": float(np.mean(np.abs(e))) for key, e in sizes.items()},
                **{f"median_{key}": float(np.median(np.abs(e))) for key, e in sizes.items()},
                "runs": " ".join(each.name for each in fit.seen),
            }


def csv_text(fits: Sequence[Fit]) -> str:
    """Return the rows as CSV, numbers with six digits."""
    text = StringIO()
    lines = [
        {name: f"{cell:.6g}" if isinstance(cell, float) else cell for name, cell in row.items()}
        for row in rows(fits)
    ]
    writer = csv.DictWriter(text, lines[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def markdown(fits: Sequence[Fit]) -> str:
    """Return the tables of README.md: values, errors, runs, and the compiler's estimates."""
    found = list(rows(fits))
    parts = (_values(found), _errors(found), _left_out(fits), _moved(fits), _estimates())
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _values(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield (
        "| constant | chips | runs (families) | bounds | catalogue | fitted | flat region "
        "| standard error | fitted, each run counts one | loss of the catalogue above the least "
        "| in standard errors |"
    )
    yield "| --- | --- |" + 9 * " ---: |"
    for row in found:
        name = row["constant"]
        bounds = _range(name, row["lower_bound"], row["upper_bound"])
        cells = (
            f"`{name}`",
            row["chips"].replace(" ", ", ") if row["chips"].count(" ") < 6 else "all",
            f"{row['observations']} ({row['families']})",
            bounds,
            *(shown(name, row[key]) for key in ("catalogue", "fitted")),
            _range(name, row["flat_from"], row["flat_to"]),
            *(shown(name, row[key]) for key in ("standard_error", "fitted_by_run")),
            f"{row['catalogue_loss_excess']:.0%}",
            f"{row['catalogue_significance']:.1f}",
        )
        yield f"| {' | '.join(cells)} |"


def _errors(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield (
        "| mean / median absolute error | neutral | at neutral | catalogue | fitted, in sample "
        "| a run left out | a family left out | neutral above the least, in standard errors |"
    )
    yield "| --- |" + 7 * " ---: |"
    for row in found:
        keys = ("neutral", "catalogue", "fitted", "run_left_out", "family_left_out")
        cells = (f"{row[f'mean_{key}']:.1%} / {row[f'median_{key}']:.1%}" for key in keys)
        name = row["constant"]
        yield (
            f"| `{name}` | {shown(name, row['neutral'])} | {' | '.join(cells)} "
            f"| {row['neutral_significance']:.1f} |"
        )


def left_out_errors(fits: Sequence[Fit]) -> dict[str, float]:
    """Return the error of each run with all constants fitted without its family.

    What the groups of constants change is multiplied, as they are fitted apart.
    """
    found = {name: 1 + one.error for name, one in today().items() if one.error is not None}
    for fit in fits:
        changed = (1 + fit.left_out(by_family=True)) / (1 + fit.errors(**fit.group.catalogue))
        for each, factor in zip(fit.seen, changed, strict=True):
            found[each.runs[-1]] *= float(factor)
    return {name: ratio - 1 for name, ratio in found.items()}


def _left_out(fits: Sequence[Fit]) -> Iterator[str]:
    found = list(left_out_errors(fits).values())
    now = [one.error for one in today().values() if one.error is not None]
    left_out, catalogue = (
        f"{s['median_abs_error']:.1%} in the median, {s['mean_abs_error']:.1%} in the mean and "
        f"{s['p90_abs_error']:.1%} at the 90th percentile"
        for s in map(error_statistics, (found, now))
    )
    yield (
        f"All {len(found)} runs, each with every constant fitted without its family, are off by "
        f"{left_out}; with the catalogue's constants by {catalogue}."
    )


def _moved(fits: Sequence[Fit]) -> Iterator[str]:
    for fit in fits:
        what = "ratios of runs" if fit.group.pairs else "runs"
        names = ", ".join(each.name for each in fit.seen)
        constants = " and ".join(f"`{each.name}`" for each in fit.group.constants)
        yield f"- The {what} that move with {constants}: {names}."


def _estimates() -> Iterator[str]:
    yield (
        "| estimates of 14 matmuls | `matmul_overlap` of the catalogue | refitted | flat region "
        "| share of peak, 269 matmuls | refitted | mean / median error, catalogue | refitted "
        "| loss of the catalogue above the least, in standard errors |"
    )
    yield "| --- |" + 8 * " ---: |"
    for chip in ESTIMATED[OVERLAP]:
        surface, given = matmul_surface(chip), catalogue(chip)
        point, best = surface.point(given), surface.values(surface.best())
        low, high = surface.flat(OVERLAP)
        errors = (np.abs(surface.errors_at(p)) for p in (point, surface.best()))
        cells = (
            *(chip, f"{given[OVERLAP]:g}", f"{best[OVERLAP]:g}", f"{low:g} to {high:g}"),
            *(f"{given[SHARE]:.3f}", f"{best[SHARE]:.3f}"),
            *(f"{np.mean(each):.1%} / {np.median(each):.1%}" for each in errors),
            f"{surface.significance(point):.1f}",
        )
        yield f"| {' | '.join(cells)} |"


def _range(name: str, low: float, high: float) -> str:
    return f"{shown(name, low)} to {shown(name, high)}"


def shown(name: str, value: float) -> str:
    """Return a constant's value as text, with its unit."""
    if COST_UNITS[name] != "s":
        return f"{value:.3g}"
    return format_seconds(value) if value else "0"
