"""A training run with failures: many random runs, and what they have in common."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import PlanError
from tpusim.base.short_repr import ShortRepr
from tpusim.base.units import format_amount
from tpusim.engine.failure_queue import Draws
from tpusim.engine.interrupted_run import InterruptedRun, Loops, Outcome
from tpusim.engine.training_loop import Activity
from tpusim.failures import Failures
from tpusim.results import PICO
from tpusim.training.durations import HOUR_S, duration
from tpusim.training.expected_run import ettr, expected_seconds, restart_seconds
from tpusim.training.failure_setup import FailureSetup

_Key = TypeVar("_Key")

QUANTILES = (0.1, 0.5, 0.9, 0.99)

MOST_FAILURES = 20_000_000
"""Failures of all random runs together: each takes 50 us."""

NO_PROGRESS = 100.0
"""Wall time over useful time from which a run is said not to progress."""

BATCH = 64
"""Random numbers that are drawn at a time."""


class CauseShare(NamedTuple):
    """What a cause does to a run, in the mean.

    name: of the cause.
    unit: what fails.
    units: units of the machine that may fail by it.
    failures: failures per run.
    lost_s: wall seconds that they cost per run: steps done again, detection, replacement, restart.
    """

    name: str
    unit: str
    units: int
    failures: float
    lost_s: float

    @property
    def which(self) -> str:
        """The units with their number, such as `48 switches`."""
        plural = "es" if self.unit == "switch" else "s"
        return f"{self.units:,} {self.unit}{plural * (self.units != 1)}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FailureSurvey(ShortRepr):
    """What random runs have in common.

    asked: the failures of the run.
    mttf_s: mean seconds between failures of the run; None if it meets none.
    restart_s: mean seconds from a failure to the next step.
    expected_s: wall seconds in closed form.
    ettr: E[ETTR], the ratio of useful to wall time in closed form (`expected_ettr`); None for a run
        without failures, without checkpoints, or with copies in memory too.
    wall_s: wall seconds of each run, in order of their numbers.
    spent_s: mean seconds of each activity.
    causes: what each cause does, the costliest first.
    lost_steps: steps done again, per run.
    away: units away at once in each run, at most.
    displaced: smaller jobs that lost a unit, per run.
    displaced_chip_s: chip-seconds that those jobs lose per run: a restart each, and the steps since
        a checkpoint, both as long as those of this run.
    life: the run of median length, span by span.
    """

    asked: Failures
    mttf_s: float | None
    restart_s: float
    expected_s: float
    ettr: float | None
    wall_s: NDArray[np.float64]
    spent_s: Mapping[Activity, float]
    causes: tuple[CauseShare, ...]
    lost_steps: float
    away: NDArray[np.int64]
    displaced: float
    displaced_chip_s: float
    life: Outcome

    @property
    def mean_s(self) -> float:
        """Mean wall seconds of a run."""
        return float(self.wall_s.mean())

    @property
    def most_away(self) -> float:
        """Units that are away at once, at most, in 99 % of the runs."""
        return float(np.quantile(self.away, 0.99))

    @property
    def failures(self) -> float:
        """Failures per run."""
        return sum(each.failures for each in self.causes)

    @property
    def error_s(self) -> float:
        """Standard error of that mean."""
        count = len(self.wall_s)
        return float(self.wall_s.std(ddof=1) / count**0.5) if count > 1 else 0.0

    @property
    def spread(self) -> str:
        """Wall time by quantile, as it is printed."""
        found = self.quantiles_s().items()
        return ", ".join(f"{share:.0%} within {duration(each)}" for share, each in found)

    def quantiles_s(self) -> dict[float, float]:
        """Return the wall seconds by quantile."""
        found = np.quantile(self.wall_s, QUANTILES)
        return dict(zip(QUANTILES, map(float, found), strict=True))

    def facts(self) -> dict[str, Any]:
        """Return the survey as plain data, in SI units."""
        return {
            "runs": len(self.wall_s),
            "seed": self.asked.seed,
            "mttf_s": self.mttf_s,
            "restart_s": self.restart_s,
            "closed_form_s": self.expected_s,
            "closed_form_ettr": self.ettr,
            "mean_s": self.mean_s,
            "standard_error_s": self.error_s,
            "quantiles_s": {f"{share:g}": each for share, each in self.quantiles_s().items()},
            "causes": [each._asdict() for each in self.causes],
            "lost_steps": self.lost_steps,
            "most_away": {
                "median": float(np.median(self.away)),
                "0.99": self.most_away,
            },
            "displaced": self.displaced,
            "displaced_chip_s": self.displaced_chip_s,
        }

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield what is printed, as names and texts."""
        often = "never" if self.mttf_s is None else f"every {duration(self.mttf_s)}"
        restart = f"{duration(self.restart_s)} from a failure to the next step"
        yield "failures", f"{often}, {self.failures:,.1f} per run; {restart}"
        yield "runs", f"{len(self.wall_s):,} at random: {self.spread}"
        yield "closed form", f"{duration(self.expected_s)} expected"
        for each in self.causes:
            if each.failures:
                found = f"{each.failures:,.2f} per run of {each.which}"
                yield f"  {each.name}", f"{found}, {duration(each.lost_s)} lost"
        yield "spares used", f"at most {self.most_away:.0f} at once in 99 % of the runs"
        if self.displaced:
            hours = f"{format_amount(self.displaced_chip_s / HOUR_S)} chip-hours of theirs lost"
            yield "displaced", f"{self.displaced:,.1f} smaller jobs per run, {hours}"


def survey(setup: FailureSetup, asked: Failures, runs: int) -> FailureSurvey:
    """Simulate so many random runs. Raise PlanError as `random_runs` does."""
    loops, expected = Loops(setup.times), expected_seconds(setup)
    found = random_runs(setup, asked.seed, runs, loops)
    restart_s = restart_seconds(setup) if setup.kinds else 0.0
    displaced_s = restart_s + setup.times.save_every * setup.times.step_ps * PICO / 2
    walls = np.array([each.total_ps * PICO for each in found])
    spent_ps = _total(each.spent_ps for each in found)
    displaced = sum(each.displaced for each in found) / runs
    middle = int(np.argsort(walls, kind="stable")[(runs - 1) // 2])
    return FailureSurvey(
        asked=asked,
        mttf_s=setup.mttf_s,
        restart_s=restart_s,
        expected_s=expected,
        ettr=ettr(setup),
        wall_s=walls,
        spent_s={activity: length * PICO / runs for activity, length in spent_ps.items()},
        causes=_cause_shares(setup, found),
        lost_steps=sum(each.lost_steps for each in found) / runs,
        away=np.array([each.most_away for each in found]),
        displaced=displaced,
        displaced_chip_s=displaced * displaced_s * setup.unit_chips,
        life=simulate_run(setup, loops, asked.seed, middle, record=True),
    )


def random_runs(
    setup: FailureSetup, seed: int, runs: int, loops: Loops | None = None
) -> list[Outcome]:
    """Return so many random runs.

    loops: of the run, to be shared.

    Raise PlanError where nothing progresses, or where they are too many to simulate.
    """
    expected = expected_seconds(setup)
    _check_progress(setup, expected)
    _check_effort(setup, expected, runs)
    loops = loops or Loops(setup.times)
    return [simulate_run(setup, loops, seed, number) for number in range(runs)]


def simulate_run(
    setup: FailureSetup, loops: Loops, seed: int, number: int, *, record: bool = False
) -> Outcome:
    """Return one random run: the same seed and number have the same luck, whatever the setup."""
    draws = _draws(seed, number)
    run = InterruptedRun(loops, setup.kinds, setup.recovery, draws, record)
    return run.run(setup.times.before)


def _draws(seed: int, number: int) -> Draws:
    between, kind, hang, repair = random_streams(seed, number, 4)
    return Draws(
        random_numbers(between, exponential=True).__next__,
        random_numbers(kind).__next__,
        random_numbers(hang).__next__,
        random_numbers(repair, exponential=True).__next__,
    )


def random_streams(seed: int, number: int, count: int) -> list[np.random.Generator]:
    """Return streams of random numbers for a run by its number, each of its own."""
    keys = ((seed, number, each) for each in range(count))
    return [np.random.Generator(np.random.PCG64(np.random.SeedSequence(key))) for key in keys]


def random_numbers(stream: np.random.Generator, *, exponential: bool = False) -> Iterator[float]:
    """Yield random numbers from 0 up to 1, or with an exponential distribution of mean 1."""
    draw = stream.standard_exponential if exponential else stream.random
    while True:
        yield from draw(BATCH).tolist()


def _total(counts: Iterable[Counter[_Key]]) -> Counter[_Key]:
    return sum(counts, Counter())


def _cause_shares(setup: FailureSetup, found: Sequence[Outcome]) -> tuple[CauseShare, ...]:
    failures = _total(each.failures for each in found)
    lost = _total(each.lost_ps for each in found)
    count, units = len(found), setup.units
    shares = [
        CauseShare(
            name, each.unit, units[each.unit], failures[name] / count, lost[name] * PICO / count
        )
        for name, each in setup.causes.items()
    ]
    return tuple(sorted(shares, key=lambda each: -each.lost_s))


def _check_progress(setup: FailureSetup, expected: float) -> None:
    useful = setup.times.steps * setup.times.step_ps * PICO
    if expected <= NO_PROGRESS * max(useful, 1.0):
        return
    assert setup.mttf_s is not None
    saves = setup.times.save_every
    every = (
        f"checkpoints come every {duration(saves * setup.times.step_ps * PICO)} and take "
        f"{duration((setup.times.stop_ps + setup.times.write_ps) * PICO)}"
        if saves
        else "there is no checkpoint"
    )
    longer = f"{expected / useful:.3g} times" if expected < float("inf") else "without end"
    raise PlanError(
        f"the run makes no progress: it fails every {duration(setup.mttf_s)}, a restart takes "
        f"{duration(restart_seconds(setup))} and {every}, so that by the closed form it lasts "
        f"{longer} as long as its steps; write more frequent or faster checkpoints "
        "([train.checkpoints]), spares, or lower rates in [failures.causes]"
    )


def _check_effort(setup: FailureSetup, expected: float, runs: int) -> None:
    if setup.mttf_s is None:
        return
    failures = expected / setup.mttf_s * runs
    if failures > MOST_FAILURES:
        fewer = max(1, int(MOST_FAILURES * setup.mttf_s / expected))
        raise PlanError(
            f"failures.runs is {runs:,}, which makes {failures:.2g} failures to simulate; write at "
            f"most {fewer:,}"
        )
