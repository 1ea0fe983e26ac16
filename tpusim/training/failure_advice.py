"""Advice on a run with failures: single changes of it, each simulated, by what they save."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import PlanError
from tpusim.base.short_repr import ShortRepr
from tpusim.base.text_table import fixed_table
from tpusim.base.toml_text import toml
from tpusim.base.units import format_amount
from tpusim.failures import Failures
from tpusim.results import PICO, PlanResult
from tpusim.training.checkpoint import checkpoint_cost
from tpusim.training.durations import duration
from tpusim.training.expected_run import units_away
from tpusim.training.failure_setup import run_setup
from tpusim.training.failure_survey import random_runs
from tpusim.training.parts import run_parts
from tpusim.training.result import TrainingResult
from tpusim.training.run import BLOCKING, Checkpoints, TrainingRun
from tpusim.training.save_interval import SaveInterval, best_save_interval

TRIAL_RUNS = 200
"""Random runs of each change, at most; all meet the same failures."""

LEAST_WAIT = 0.001
"""Share of time without a needed spare, from which more of them gain nothing."""

LEAST_GAIN = 5e-4
"""Share of the wall time below which a change is left out."""

ADVICE_HEADS = ("change", "wall time", "shorter", "USD")
NO_CHANGE = "no single change that was tried shortens the run"


@dataclass(frozen=True, slots=True)
class RunChange:
    """A change of a run with failures.

    settings: keys of the run file and their values.
    wall_s: wall seconds of each random run with it.
    cost_usd: mean USD of a run; None where the chip has no price.
    """

    settings: Mapping[str, Any]
    wall_s: NDArray[np.float64]
    cost_usd: float | None

    @property
    def mean_s(self) -> float:
        """Mean wall seconds of the random runs."""
        return float(self.wall_s.mean())

    @property
    def title(self) -> str:
        """The settings as they are written."""
        return ", ".join(f"{key} = {_written(value)}" for key, value in self.settings.items())

    @property
    def written(self) -> tuple[str, ...]:
        """The settings as `--set` takes them, a text each."""
        return tuple(f"{key}={toml(value)}" for key, value in self.settings.items())


@dataclass(frozen=True, slots=True, repr=False)
class RunAdvice(ShortRepr):
    """Changes of a run with failures, the shortest wall time first. Prints as a table.

    base: the run as it is.
    changes: single changes that shorten it.
    interval: its best interval of checkpoints; None without checkpoints.
    """

    base: RunChange
    changes: tuple[RunChange, ...]
    interval: SaveInterval | None

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        if self.interval is not None:
            yield f"checkpoints {self.interval}"
            yield ""
        rows = [(f"  {name}", *numbers) for name, *numbers in (ADVICE_HEADS, *self.rows())]
        yield from fixed_table(rows, (max(len(row[0]) for row in rows) + 2, 12, 9))
        if not self.changes:
            yield NO_CHANGE

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Yield the run as given and each change as texts, in the columns of `ADVICE_HEADS`."""
        for each in (self.base, *self.changes):
            cost = "-" if each.cost_usd is None else format_amount(each.cost_usd)
            wall = duration(each.mean_s)
            yield each.title or "as given", wall, f"{self.gain(each):.1%}", cost

    def gain(self, change: RunChange) -> float:
        """Return the share of the wall time that a change saves."""
        return 1 - change.mean_s / self.base.mean_s

    def facts(self) -> dict[str, Any]:
        """Return the advice as plain data, in SI units."""
        return {
            "interval": None if self.interval is None else self.interval.facts(),
            "changes": [
                {
                    "settings": dict(each.settings),
                    "mean_s": each.mean_s,
                    "cost_usd": each.cost_usd,
                }
                for each in (self.base, *self.changes)
            ],
        }


def failure_advice(result: TrainingResult) -> RunAdvice:
    """Return changes of a run with failures that shorten it, each simulated.

    Tried are spares, the interval of checkpoints, copies in the hosts' memory and on their peers,
    asynchronous checkpoints, a compilation cache, and going on with fewer slices.

    Raise PlanError for a run without failures.
    """
    step, run, found = result.step, result.run, result.failures
    if run.failures is None or found is None:
        raise PlanError("there are no failures to advise on; write a section [failures]")
    interval = None if run.checkpoints is None else best_save_interval(step, run)
    base = _change(step, run, {}, found.wall_s[:TRIAL_RUNS])
    tried = (_tried(step, run, settings) for settings in _settings(step, run, interval))
    least = base.mean_s * (1 - LEAST_GAIN)
    better = [each for each in tried if each is not None and each.mean_s < least]
    return RunAdvice(base, tuple(sorted(better, key=lambda each: each.mean_s)), interval)


def changed_run(run: TrainingRun, settings: Mapping[str, Any]) -> TrainingRun:
    """Return a run with other settings, by their keys in a run file."""
    for name in ("failures", "train.checkpoints"):
        field = name.rpartition(".")[2]
        keys = {key.rpartition(".")[2]: value for key, value in settings.items() if name in key}
        if keys:
            run = replace(run, **{field: replace(getattr(run, field), **keys)})
    return run


def _tried(step: PlanResult, run: TrainingRun, settings: Mapping[str, Any]) -> RunChange | None:
    """Return a change, simulated; None where the run does not allow it."""
    try:
        changed = changed_run(run, settings)
        assert changed.failures is not None
        asked = changed.failures
        found = random_runs(run_setup(step, changed), asked.seed, min(asked.runs, TRIAL_RUNS))
    except PlanError:
        return None
    return _change(step, changed, settings, np.array([each.total_ps * PICO for each in found]))


def _change(
    step: PlanResult, run: TrainingRun, settings: Mapping[str, Any], wall_s: NDArray[np.float64]
) -> RunChange:
    """Return a run with some settings; wall_s: of its random runs."""
    dollars = step.pod.usd_per_second(run.price)
    cost = None if dollars is None else dollars * run.paid_share(step.pod) * float(wall_s.mean())
    return RunChange(settings, wall_s, cost)


def _settings(
    step: PlanResult, run: TrainingRun, interval: SaveInterval | None
) -> Iterator[Mapping[str, Any]]:
    """Yield changes of a run that may shorten it."""
    asked, saves = run.failures, run.checkpoints
    assert asked is not None
    if interval is not None:
        yield interval.settings
    if saves is not None and interval is not None:
        if saves.memory_every is None:
            yield from _copies(step, run, saves, interval)
        elif not saves.peers:
            yield {"train.checkpoints.peers": True}
        if saves.mode == BLOCKING:
            yield {"train.checkpoints.mode": "asynchronous"}
    if asked.spares is not None and not asked.displaces:
        yield from _spares(step, run, asked, asked.spares)
        yield {"failures.displaces": True}
    if not asked.elastic and step.pod.num_slices > 1:
        yield {"failures.elastic": True}
    if asked.compile_s:
        yield {"failures.compile_s": 0.0}


def _copies(
    step: PlanResult, run: TrainingRun, saves: Checkpoints, interval: SaveInterval
) -> Iterator[Mapping[str, Any]]:
    """Yield copies in the hosts' memory as often as they pay, between the best checkpoints."""
    cost, step_s = checkpoint_cost(step, saves), run_parts(step, run)[0].step_s
    for share in (5, 20):
        copies = max(1, interval.every // share, round(cost.exchange_s / step_s))
        yield {
            "train.checkpoints.every": copies * share,
            "train.checkpoints.memory_every": copies,
        }


def _spares(
    step: PlanResult, run: TrainingRun, asked: Failures, spares: int
) -> Iterator[Mapping[str, Any]]:
    """Yield one spare more, and as many as leave no wait."""
    yield {"failures.spares": spares + 1}
    away = units_away(run_setup(step, replace(run, failures=replace(asked, spares=None))))
    needed = next(
        number
        for number in away
        if sum(share for more, share in away.items() if more > number) < LEAST_WAIT
    )
    if needed > spares + 1:
        yield {"failures.spares": needed}


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else f"{value:,}".replace(",", "_")
