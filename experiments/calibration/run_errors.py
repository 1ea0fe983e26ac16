"""The measured runs, simulated with changed constants: surfaces of errors over their values."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
from fitted_constants import Group
from fitting import Floats, Surface

from tpusim.validation import MeasuredRun, RunChange, measured_runs
from tpusim.validation.outcome import RunOutcome, simulate_run
from tpusim.validation.pairs import run_pairs

RUNS = Path(__file__).resolve().parents[2] / "tests" / "measured" / "runs"
MOVED = 0.01
"""A run moves with a constant if it takes this fraction longer at one bound than at the other."""

POINTS = 121
"""Values of a constant at which errors are interpolated."""

OTHER_SOFTWARE = "tp-v6e-405b-2pod-gbs128"
"""A run on two slices whose partner was measured again two weeks later, 1.4 times as fast."""


@dataclass(frozen=True)
class Observation:
    """What a prediction is held against: the time of a run, or the ratio of two.

    measured: seconds, or the second run's over the first's.
    runs: one, or the first and the second.
    """

    name: str
    family: str
    measured: float
    runs: tuple[str, ...]

    def of(self, seconds: Mapping[str, float]) -> float:
        """Return what is predicted, from seconds by run."""
        *first, last = (seconds[name] for name in self.runs)
        return last / first[0] if first else last


@cache
def table() -> tuple[MeasuredRun, ...]:
    """Return the measured runs that constants are fitted to."""
    return measured_runs(RUNS)


@cache
def today() -> dict[str, RunOutcome]:
    """Return the outcome of each run with the constants of the catalogue."""
    return {run.id: simulate_run(run) for run in table()}


def predicted(runs: Sequence[str], change: RunChange) -> dict[str, float]:
    """Return the predicted seconds of some runs with a change. Raise ValueError if one fails."""
    found = {}
    for run in table():
        if run.id in runs:
            outcome = simulate_run(run, change=change)
            if outcome.predicted_s is None:
                raise ValueError(f"{run.id} cannot be simulated: {outcome.reason}")
            found[run.id] = outcome.predicted_s
    return found


def observations(group: Group) -> tuple[Observation, ...]:
    """Return what the constants of a group are fitted to: what moves with one of them."""
    candidates = tuple(_ratios(group) if group.pairs else _times(group))
    runs = list(dict.fromkeys(name for each in candidates for name in each.runs))
    ends = [predicted(runs, group.change(values)) for values in _bounds(group)]
    return tuple(
        each
        for each in candidates
        if max(abs(each.of(end) / each.of(ends[0]) - 1) for end in ends) > MOVED
    )


def _bounds(group: Group) -> Iterator[dict[str, float]]:
    """Yield the lower bounds of all constants, then the upper one of each."""
    lower = {each.name: each.values[0] for each in group.constants}
    yield lower
    yield from (lower | {each.name: each.values[-1]} for each in group.constants)


def _times(group: Group) -> Iterator[Observation]:
    for run in table():
        if run.chip in group.chips:
            yield Observation(run.id, today()[run.id].family, run.step_s, (run.id,))


def _ratios(group: Group) -> Iterator[Observation]:
    """Yield the pairs of a run on one slice and the same on several."""
    for pair in run_pairs(list(today().values())):
        alike = pair.decision == "slices" and not pair.also and pair.change.startswith("1 ")
        ids = (pair.first, pair.second)
        if alike and pair.second != OTHER_SOFTWARE and today()[pair.first].run.chip in group.chips:
            family = today()[pair.first].family
            yield Observation(pair.second, family, pair.measured_ratio, ids)


def simulated_surface(group: Group, seen: Sequence[Observation]) -> Surface:
    """Return the errors at the values at which predictions are made, all of them simulated."""
    axes = {each.name: np.array(each.values) for each in group.constants}
    runs = list(dict.fromkeys(name for each in seen for name in each.runs))
    errors = np.zeros((len(seen), *map(len, axes.values())))
    for point in product(*(range(len(values)) for values in axes.values())):
        values = {name: float(axes[name][i]) for name, i in zip(axes, point, strict=True)}
        errors[(slice(None), *point)] = errors_with(group, seen, values, runs)
    return Surface(axes, errors, tuple(each.family for each in seen), group.scale)


def errors_with(
    group: Group, seen: Sequence[Observation], values: Mapping[str, float], runs: Sequence[str] = ()
) -> Floats:
    """Return log(predicted / measured) of observations with the constants at some values."""
    runs = runs or list(dict.fromkeys(name for each in seen for name in each.runs))
    seconds = predicted(runs, group.change(values))
    return np.log([each.of(seconds) / each.measured for each in seen])


def fine_axes(group: Group) -> dict[str, Floats]:
    """Return the values between the bounds at which errors are interpolated.

    Those of the catalogue and the neutral ones are among them.
    """
    return {
        each.name: np.unique(
            [
                *np.linspace(each.values[0], each.values[-1], POINTS),
                *(group.catalogue[each.name], each.neutral),
            ]
        )
        for each in group.constants
    }
