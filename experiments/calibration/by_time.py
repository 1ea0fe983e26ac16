"""What would be predicted if only the runs published before a date were known, for several dates.

    python experiments/calibration/by_time.py

writes by_time.csv, in some ten minutes; `docs/tools/generate.py` makes the table of it. For each
date the fitted constants are fitted again to the runs published before it. A mechanism is used if
runs of two families published before it move with it, and their loss is smaller with it than
without. Where there are no such runs, constants are neutral and mechanisms off, even if the
mechanism is known from compiled programs.
"""

import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import log

import numpy as np
from ablation import Switch, switches
from coverage_by_time import DATES, NUMBERS
from fit_tables import Fit
from fitted_constants import WHOLE_RUNS
from fitting import soft_l1
from run_errors import MOVED, fine_axes, observations, simulated_surface, table, today

from tpusim.runfile import SimulationRun
from tpusim.validation import MeasuredRun
from tpusim.validation.outcome import simulate_run

ROUNDS = {"v3.1": "2023-11", "v4.1": "2024-11"}
"""When the results of a round of MLPerf Training were published."""
FEWEST_FAMILIES = 2
SCALE = 0.05
"""The error at which the loss turns linear, as in the fits."""

Logs = Mapping[str, float]
"""Of runs, by id: the logarithm of a prediction over today's."""


@dataclass(frozen=True)
class Then:
    """What the runs published before a date say.

    date: such as `2025-07`.
    constants: the values of each group of constants, by its title.
    off: mechanisms that they do not support.
    """

    date: str
    constants: Mapping[str, Mapping[str, float]]
    off: tuple[Switch, ...] = ()

    def shifts(self) -> dict[str, float]:
        """Return the logarithm of each run's prediction over today's."""
        return {run.id: self.shift(run) for run in table()}

    def shift(self, run: MeasuredRun) -> float:
        """Return it for one run. Raise ValueError if the run cannot be simulated so."""
        passes = tuple(name for switch in self.off for name in switch.without_passes)
        then = simulate_run(run, passes, self._change)
        now = today()[run.id].predicted_s
        if then.predicted_s is None or now is None:
            raise ValueError(f"{run.id} cannot be simulated: {then.reason}")
        return log(then.predicted_s / now)

    def _change(self, setup: SimulationRun) -> SimulationRun:
        for group in WHOLE_RUNS:
            if group.title in self.constants and setup.pod.chip.name in group.chips:
                setup = group.change(self.constants[group.title])(setup)
        for switch in self.off:
            setup = switch.change(setup) if switch.change else setup
        return setup


def published(run: MeasuredRun) -> str:
    """Return when a run was published, as text that sorts: a year alone is its end."""
    date = ROUNDS.get(run.measured.date, run.measured.date)
    return date if "-" in date else f"{date}-12"


@cache
def families_before(date: str) -> dict[str, str]:
    """Return the family of each run published before a date."""
    return {run.id: today()[run.id].family for run in table() if published(run) < date}


def constants_before(fits: Mapping[str, Fit], date: str) -> dict[str, dict[str, float]]:
    """Return the values of each group, neutral where fewer than two families move with them."""
    known = families_before(date)
    found = {}
    for group in WHOLE_RUNS:
        found[group.title] = {each.name: each.neutral for each in group.constants}
        fit = fits.get(group.title)
        if fit is None:
            continue
        kept = np.array([all(name in known for name in each.runs) for each in fit.seen])
        if len(set(np.array(fit.surface.families)[kept])) >= FEWEST_FAMILIES:
            found[group.title] = fit.surface.values(fit.surface.best(kept))
    return found


def fits_before(date: str) -> dict[str, Fit]:
    """Return the fits of the groups with which two families published before a date move."""
    found = {}
    for group in WHOLE_RUNS:
        known = families_before(date)
        if not any(run.chip in group.chips and run.id in known for run in table()):
            continue
        seen = [each for each in observations(group) if all(name in known for name in each.runs)]
        if len({each.family for each in seen}) >= FEWEST_FAMILIES:
            surface = simulated_surface(group, seen).refined(fine_axes(group))
            found[group.title] = Fit(group, tuple(seen), surface)
    return found


def mechanisms() -> list[Switch]:
    """Return what is on or off: all switches but the fitted constants, which have values."""
    fitted = {each.name for group in WHOLE_RUNS for each in group.constants}
    return [
        switch
        for name, switch in switches().items()
        if name.partition(" ")[0] not in fitted and name != "matmul_overlap refitted"
    ]


def movements(chosen: Sequence[Switch]) -> dict[str, dict[str, float]]:
    """Return what the absence of each mechanism changes in the runs that move with it, by name."""
    found: dict[str, dict[str, float]] = {switch.name: {} for switch in chosen}
    passes = [switch for switch in chosen if switch.without_passes]
    others = [switch for switch in chosen if not switch.without_passes]
    for run in table():
        apart = [each for each in others if each.change and each.change(run.given) != run.given]
        for switch in (*_moving(run, passes), *apart):
            moved = _without(run, (switch,))
            if abs(moved) > log(1 + MOVED):
                found[switch.name][run.id] = moved
    return found


def _moving(run: MeasuredRun, passes: Sequence[Switch]) -> Sequence[Switch]:
    """Return the passes with which a run moves: both halves are asked if it moves with all."""
    if abs(_without(run, passes)) <= log(1 + MOVED):
        return ()
    if len(passes) == 1:
        return passes
    half = len(passes) // 2
    return (*_moving(run, passes[:half]), *_moving(run, passes[half:]))


def _without(run: MeasuredRun, off: Sequence[Switch]) -> float:
    """Return the logarithm of a run's prediction without some mechanisms over today's."""
    return Then("", {}, tuple(off)).shift(run)


def supported(moved: Logs, shifts: Logs, date: str) -> bool:
    """Return True if the runs published before a date are better with a mechanism.

    moved: what its absence changes.
    shifts: what the constants of the time change.
    """
    known = families_before(date)
    seen = [name for name in moved if name in known]
    families = [known[name] for name in seen]
    if len(set(families)) < FEWEST_FAMILIES:
        return False
    errors = np.array([log(1 + (today()[name].error or 0)) + shifts[name] for name in seen])
    gains = soft_l1(errors + [moved[name] for name in seen], SCALE) - soft_l1(errors, SCALE)
    means = [np.mean(gains[np.array(families) == name]) for name in set(families)]
    return float(np.mean(means)) > 0


def rows(dates: Sequence[str] = DATES) -> Iterator[tuple[str, ...]]:
    """Yield date, run, when it was published, and both shifts."""
    fits = fits_before(dates[-1])
    chosen = {switch.name: switch for switch in mechanisms()}
    movement = movements(tuple(chosen.values()))
    for date in dates:
        constants = constants_before(fits, date)
        alone = Then(date, constants).shifts()
        off = [n for n, moved in movement.items() if moved and not supported(moved, alone, date)]
        print(f"before {date}: {', '.join(off)} off", file=sys.stderr)
        both = Then(date, constants, tuple(chosen[name] for name in off)).shifts()
        for run in table():
            shifts = (f"{kind[run.id]:.5f}" for kind in (alone, both))
            yield (date, run.id, published(run), *shifts)


def main() -> None:
    """Write the file."""
    found = list(rows())
    with NUMBERS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("before", "run", "published", "constants", "mechanisms"))
        writer.writerows(found)


if __name__ == "__main__":
    main()
