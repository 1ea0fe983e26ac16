"""Calibrate: factors of the chip's costs from a user's own profiles and measured runs."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import combinations
from math import log, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import FileError
from tpusim.base.shown_value import shown
from tpusim.calibration.estimate import FactorEstimate, Floats, Rows, estimate
from tpusim.calibration.measured_steps import STEPS, MeasuredStep, TrialFactors
from tpusim.hardware import FACTORS, MOST, Calibration, Factor, Slice, least_factor
from tpusim.hardware.calibration import HEAD
from tpusim.runfile import SimulationRun, read_run

if TYPE_CHECKING:
    from tpusim.calibration.profiled_steps import ProfiledSteps
    from tpusim.profiles import Profile

SPREADS = {"matmul": 0.03, "hbm": 0.1, "host": 0.25}
OTHER_SPREAD = 0.15
"""Standard deviations of the factors' logarithms that are expected before anything is measured.

Of steps they are near those that explain best what runs of one family and chip have in common
(maximum likelihood on the measured runs; experiments/own_calibration/scales.py): constants such as
that of matmuls come from steps, which so are known better than single operations. Of operations all
have the second one."""

ODDS = 0.9
"""The probability with which all intervals hold the truth at once."""

ROUNDS = 2
"""Simulations with better factors each, as what hides behind what changes with them."""

VAGUE, ALIKE = 0.9, -0.6
"""Share of the expected spread that is hardly less, and correlation of what is hard to tell apart.
"""

LEAST_SHARE = 0.01
"""A row counts for a factor if that is so much of its time."""

Given: TypeAlias = "str | Path | SimulationRun | Profile"
Source: TypeAlias = "MeasuredStep | ProfiledSteps"


@checked_call
def calibrate(
    *sources: "Given | Iterable[Given]", pod: Slice | str | None = None, date: str | None = None
) -> Calibration:
    """Return factors of measured over predicted time, with intervals.

    sources: paths of profiles (`*.xplane.pb`), of run files with a section [measured], or of
        folders of either; or what `read_profile` and `read_run` return. All of one chip.
    pod: the slice of the profiles; by default the smallest usual one with as many devices as the
        program.
    date: of the calibration; by default today.

    Nothing is faster than physics allows: a factor that would take an efficiency above 1 of its
    peak is clipped, and a note says so.

    Raise FileError for what cannot be read or was not measured, and for several chips at once.
    """
    found = list(_sources(sources, pod))
    if not found:
        raise FileError(
            "nothing to calibrate on; give profiles, or run files with a section [measured]"
        )
    chips: dict[str, str] = {}
    for name, each in found:
        chips.setdefault(each.chip.generation, name)
    if len(chips) > 1:
        (one, first), (other, second) = list(chips.items())[:2]
        raise FileError(
            f"{first} is of {one}, and {second} of {other}; calibrate each chip by itself"
        )
    names = tuple(dict.fromkeys(name for name, _ in found))
    made = learnt_from([each for _, each in found])
    return replace(made, learnt_from=names, date=date or f"{datetime.now(UTC):%Y-%m-%d}")


def _sources(given: object, pod: Slice | str | None) -> Iterable[tuple[str, Source]]:
    """Yield the names and the contents of paths, or of what was read."""
    if isinstance(given, list | tuple):
        for each in given:
            yield from _sources(each, pod)
    elif isinstance(given, SimulationRun):
        yield Path(given.where).name, MeasuredStep.of(given)
    elif isinstance(given, str | Path) and (paths := _run_files(Path(given))):
        yield from ((path.name, MeasuredStep.of(read_run(path))) for path in paths)
    else:
        yield _profiled(given, pod)


def _run_files(path: Path) -> list[Path]:
    """Return a run file, or those in a folder, which may have calibrations beside them."""
    if path.suffix == ".toml":
        return [path]
    return [each for each in sorted(path.rglob("*.toml")) if not _is_calibration(each)]


def _is_calibration(path: Path) -> bool:
    with suppress(OSError):
        return path.read_bytes().startswith(HEAD.encode())
    return False


def _profiled(given: object, pod: Slice | str | None) -> tuple[str, Source]:
    from tpusim.calibration.profiled_steps import ProfiledSteps
    from tpusim.profiles import Profile, read_profile

    if not isinstance(given, str | Path | Profile):
        raise FileError(
            f"calibrate is given {shown(given)}; write the path of a profile or of a run file with "
            "a section [measured]"
        )
    profile = given if isinstance(given, Profile) else read_profile(given)
    return profile.name, ProfiledSteps.of(profile, pod)


def learnt_from(sources: Sequence[Source]) -> Calibration:
    """Return the calibration of what was measured on one chip, without names and date.

    The rows are made anew with the factors that they gave.
    """
    chip = sources[0].chip
    least = np.log([least_factor(name, chip.costs) for name in FACTORS])
    known = SPREADS if all(isinstance(each, MeasuredStep) for each in sources) else {}
    spreads = np.array([known.get(name, OTHER_SPREAD) for name in FACTORS])
    trial, asked = TrialFactors(), list(FACTORS)
    for _ in range(ROUNDS):
        rows = Rows.joined([source.rows(trial, asked) for source in sources])
        asked = [name for at, name in enumerate(FACTORS) if rows.elasticities[:, at].any()]
        from_one = replace(rows, ratios=rows.ratios + rows.elasticities @ np.array(trial.logs))
        found = estimate(from_one, spreads, least)
        trial = TrialFactors(tuple(found.mean.tolist()))
    steps = sum(group == STEPS for group in rows.groups)
    factors = tuple(_factors(found, rows, least))
    return Calibration(
        chip=chip.generation,
        factors=factors,
        runs=steps,
        operations=len(rows) - steps,
        spread=_left_over(from_one, found),
        notes=tuple(_notes(found, dict(factors), spreads)),
        steps=tuple(each.left_over(trial) for each in sources if isinstance(each, MeasuredStep)),
    )


def _factors(found: FactorEstimate, rows: Rows, least: Floats) -> Iterable[tuple[str, Factor]]:
    """Yield the factors of which something was measured."""
    counts = (np.abs(rows.elasticities) > LEAST_SHARE).sum(axis=0)
    learnt = int((counts > 0).sum())
    chance = ODDS ** (1 / max(learnt, 1))
    for at, name in enumerate(FACTORS):
        if counts[at]:
            half = found.half(at, chance)
            low, high = found.mean[at] - half, found.mean[at] + half
            ends = np.clip([found.mean[at], low, high], least[at], log(MOST))
            value, low, high = np.exp(ends).tolist()
            yield name, Factor(value, low, high, int(counts[at]))


def _left_over(rows: Rows, found: FactorEstimate) -> float:
    left = rows.ratios - rows.elasticities @ found.mean
    return sqrt(float(np.average(left**2, weights=rows.weights)))


def _notes(found: FactorEstimate, counted: Mapping[str, Factor], spreads: Floats) -> Iterable[str]:
    for at, name in enumerate(FACTORS):
        if name in counted and found.held[at]:
            yield (
                f"{name} is clipped at its physical bound: what was measured would need more than "
                "the peak"
            )
    spread = np.sqrt(np.diag(found.covariance))
    vague = [
        name
        for at, name in enumerate(FACTORS)
        if name in counted and not found.held[at] and spread[at] > VAGUE * spreads[at]
    ]
    if vague:
        yield f"hardly anything was learnt of {', '.join(vague)}: intervals are what is usual"
    for name, other in combinations(counted, 2):
        at, by = FACTORS.index(name), FACTORS.index(other)
        if found.covariance[at, by] < ALIKE * spread[at] * spread[by]:
            yield f"{name} and {other} are hard to tell apart: one may be what the other is"
