"""The steps between checkpoints that make a run with failures shortest."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from math import sqrt
from typing import Any

from tpusim.base.divisors import divisors
from tpusim.base.errors import PlanError
from tpusim.results import PICO, PlanResult
from tpusim.training.durations import duration
from tpusim.training.expected_run import expected_seconds
from tpusim.training.failure_setup import run_setup
from tpusim.training.parts import run_parts
from tpusim.training.result import TrainingResult
from tpusim.training.run import TrainingRun


@dataclass(frozen=True, slots=True)
class SaveInterval:
    """The best steps between checkpoints, by the expected time of the run.

    every: steps between checkpoints.
    memory_every: steps between copies in the hosts' memory; None without.
    expected_s: expected wall seconds of the run.
    given_s: those with the run's own intervals.
    young: steps that Young's formula gives.
    daly: steps that Daly's gives.
    reason: why it is the best, in a sentence.
    """

    every: int
    memory_every: int | None
    expected_s: float
    given_s: float
    young: float
    daly: float
    reason: str

    def __str__(self) -> str:
        copies = "" if self.memory_every is None else f", copies every {self.memory_every:,}"
        return (
            f"every {self.every:,} steps{copies}: {duration(self.expected_s)} expected, "
            f"{duration(self.given_s)} as given (Young {self.young:,.0f}, Daly {self.daly:,.0f} "
            f"steps); {self.reason}"
        )

    @property
    def settings(self) -> dict[str, int]:
        """The interval as keys of a run file."""
        found = {"every": self.every, "memory_every": self.memory_every}
        return {f"train.checkpoints.{key}": each for key, each in found.items() if each is not None}

    def facts(self) -> dict[str, Any]:
        """Return the interval as plain data."""
        return asdict(self)


def save_interval(result: TrainingResult) -> SaveInterval | None:
    """Return the best interval of a run's checkpoints; None if it has none, or nothing fails."""
    if result.failures is None or not result.failures.mttf_s or result.run.checkpoints is None:
        return None
    return best_save_interval(result.step, result.run)


def best_save_interval(step: PlanResult, run: TrainingRun) -> SaveInterval:
    """Return the intervals of a run's checkpoints, and of its copies, that make it shortest.

    The expected time is a smooth function of the interval with one minimum, which is found by
    halving; of two tiers the copies' interval is a divisor of the checkpoints'.

    Raise PlanError for a run without failures or without checkpoints.
    """
    saves = run.checkpoints
    if run.failures is None or saves is None:
        raise PlanError(
            "the best interval of checkpoints needs [failures] and [train.checkpoints]; write both"
        )
    expected = expected_by_interval(step, run)
    steps, parts = run.steps_of(step.plan), run_parts(step, run)[0]
    copies: int | None = None
    if saves.memory_every is None:
        every = _least(lambda number: expected(number, None), steps)
    else:
        pairs = ((every, copies) for every in _scale(steps) for copies in divisors(every))
        every, copies = min(pairs, key=lambda pair: expected(*pair))
    setup = run_setup(step, run, parts)
    stop = setup.times.stop_ps / setup.times.step_ps
    mttf = (setup.mttf_s or 0.0) / (setup.times.step_ps * PICO)
    return SaveInterval(
        every,
        copies,
        expected(every, copies),
        expected(saves.every, saves.memory_every),
        young_interval(stop, mttf),
        daly_interval(stop, mttf),
        _reason(every, stop, mttf, setup.times.write_ps / setup.times.step_ps),
    )


def expected_by_interval(step: PlanResult, run: TrainingRun) -> Callable[[int, int | None], float]:
    """Return the expected wall seconds of a run, by steps between checkpoints and between copies.

    The run has failures and checkpoints; None stands for no copies in the hosts' memory.
    """
    parts, saves = run_parts(step, run)[0], run.checkpoints
    assert saves is not None

    def expected(every: int, memory_every: int | None) -> float:
        asked = replace(saves, every=every, memory_every=memory_every)
        return expected_seconds(run_setup(step, replace(run, checkpoints=asked), parts))

    return expected


def young_interval(stop: float, mttf: float) -> float:
    """Return the useful time between checkpoints that Young recommends: `sqrt(2 stop mttf)`.

    stop: for which a checkpoint stops the steps.
    mttf: mean time between failures, in the same unit.

    Source: J. W. Young, Communications of the ACM 17(9), 1974.
    """
    return sqrt(2 * stop * mttf)


def daly_interval(stop: float, mttf: float) -> float:
    """Return the useful time between checkpoints that Daly recommends, of a higher order.

    Source: J. T. Daly, Future Generation Computer Systems 22(3), 2006, equation 37.
    """
    if stop >= 2 * mttf:
        return mttf
    ratio = stop / (2 * mttf)
    return sqrt(2 * stop * mttf) * (1 + sqrt(ratio) / 3 + ratio / 9) - stop


def _reason(every: int, stop: float, mttf: float, write: float) -> str:
    """Return what holds the interval where it is; all lengths in steps."""
    if not mttf:
        return "nothing fails"
    if every <= write + 1:
        return "the next checkpoint cannot begin before this one is written"
    saved, lost = stop / every, every / 2 / mttf
    return f"checkpoints then stop {saved:.2%} of the time, and failures undo {lost:.2%}"


def _least(function: Callable[[int], float], most: int) -> int:
    """Return where a function of whole numbers from 1 to `most` with one minimum is least."""
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        if function(middle) <= function(middle + 1):
            high = middle
        else:
            low = middle + 1
    return low


def _scale(most: int) -> Iterator[int]:
    """Yield whole numbers with many divisors, a factor of at most 1.5 apart."""
    for power in range(64):
        for number in (2**power, 3 * 2**power // 2):
            if number > most:
                return
            yield number
