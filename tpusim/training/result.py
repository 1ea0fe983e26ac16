"""The result of a training run: its wall time by bucket, and what it costs."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tpusim.base.short_repr import ShortRepr
from tpusim.base.text_table import fixed_table
from tpusim.base.units import JOULES_PER_KWH, format_amount, format_seconds
from tpusim.engine.training_loop import Activity, TrainingTimeline
from tpusim.results import PICO, PlanResult, entry
from tpusim.training.checkpoint import CheckpointCost
from tpusim.training.durations import HOUR_S, duration
from tpusim.training.failure_survey import FailureSurvey
from tpusim.training.run import TrainingRun
from tpusim.training.straggler_survey import StragglerSurvey

GOODPUT = "GOODPUT"
BUCKETS: Mapping[str, tuple[Activity, ...]] = {
    GOODPUT: (Activity.STEPS,),
    "TPU_INITIALIZATION": (Activity.INITIALIZATION,),
    "TRAINING_PREP": (Activity.PREPARATION,),
    "PROGRAM_STARTUP": (Activity.COMPILATION, Activity.WARM_UP),
    "DATA_LOADING_SYNC": (),
    "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME": (
        Activity.CHECKPOINT,
        Activity.CHECKPOINT_WAIT,
        Activity.MEMORY_COPY,
    ),
    "CUSTOM_BADPUT_EVENTS": (Activity.EVALUATION,),
}
"""The activities of each bucket, which has its name of ml-goodput-measurement (`BadputType` of
AI-Hypercomputer/ml-goodput-measurement, v0.2). The library, too, books the excess of the first
steps as start-up, and MaxText evaluations as events of its own. Waits for input are a part of the
steps."""

FAILURE_BUCKETS: Mapping[str, tuple[Activity, ...]] = {
    "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME": (Activity.RESTORE,),
    "WASTED_PROGRESS_FROM_DISRUPTION": (Activity.LOST_STEPS,),
    "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION": (Activity.DETECTION, Activity.REPLACEMENT),
    "ELASTIC_REINITIALIZATION": (Activity.RESHARD,),
    "ELASTIC_SCALE_UP": (Activity.SCALE_UP,),
    "ELASTIC_SLICE_DOWN": (Activity.SLICES_DOWN,),
    "OTHER": (Activity.DEGRADED,),
}
"""Buckets of a run with failures (ibid.). OTHER is what steps take longer on a broken torus, and
ELASTIC_SLICE_DOWN what they take longer with fewer slices."""

PUE = 1.10
"""Power of the data centre over that of its machines, of Google's (arXiv:2304.01433)."""

GRID, GRID_RANGE = 475.0, (74.0, 475.0)
"""Grams of CO2 equivalent per kWh: the mean of the world; from Google's Oklahoma site after its
purchases (arXiv:2304.01433)."""


class Estimate(NamedTuple):
    """A number and the ends of its range."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> "Estimate":
        """Return the estimate of so many times the number."""
        return Estimate(self.value * factor, self.low * factor, self.high * factor)

    def words(self, written: Callable[[float], str]) -> str:
        """Return the number with its range, each as `written` gives it."""
        return f"{written(self.value)} ({self.ends(written)})"

    def ends(self, written: Callable[[float], str]) -> str:
        """Return the range alone."""
        return f"{written(self.low)} to {written(self.high)}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TrainingResult(ShortRepr):
    """A training run as simulated. Prints as a report.

    step: the simulated step.
    run: what was asked for.
    steps: steps until all is read.
    step_time_s: seconds of a step; the simulated ones, unless the run gives its own, times the
        mean factor of its stragglers.
    timeline: of the run as predicted, without failures.
    buckets: wall seconds by bucket of ml-goodput-measurement, which sum to those of the run.
    wall_s: seconds of the run, the sum of the buckets. With failures it is the mean of the random
        runs; the range is from the tenth percentile of runs whose parts are at their shortest to
        the ninetieth of those at their longest.
    checkpoint: what a checkpoint takes; None without.
    failures: the random runs; None without failures.
    stragglers: what they do to the steps; None without.
    notes: what was assumed.
    """

    step: PlanResult
    run: TrainingRun
    steps: int
    step_time_s: float
    timeline: TrainingTimeline
    buckets: Mapping[str, Estimate]
    wall_s: Estimate
    checkpoint: CheckpointCost | None
    failures: FailureSurvey | None = None
    stragglers: StragglerSurvey | None = None
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(self._lines())

    @property
    def goodput(self) -> float:
        """The fraction of the wall time in which steps run and do not wait for input."""
        return self.buckets[GOODPUT].value / self.wall_s.value

    @property
    def tokens(self) -> int:
        """Tokens (examples, of a model without sequences) that the steps read."""
        return self.steps * self.step.tokens

    @property
    def chip_hours(self) -> Estimate:
        """Hours times chips, those of spares included."""
        return self.wall_s.times(self.step.pod.chips * self._paid / HOUR_S)

    @property
    def _paid(self) -> float:
        return self.run.paid_share(self.step.pod)

    @property
    def cost_usd(self) -> Estimate | None:
        """Dollars; the range is that of the wall time. None where the chip has no price."""
        dollars = self.step.pod.usd_per_second(self.run.price)
        return None if dollars is None else self.wall_s.times(dollars * self._paid)

    @property
    def energy_j(self) -> Estimate | None:
        """Joules of the chips, at their mean power in use. None where that is not published."""
        watts = self.step.pod.watts
        return None if watts is None else self.wall_s.times(watts)

    @property
    def energy_kwh(self) -> Estimate | None:
        """That energy in kWh."""
        return None if self.energy_j is None else self.energy_j.times(1 / JOULES_PER_KWH)

    @property
    def co2_kg(self) -> Estimate | None:
        """Kilograms of CO2 equivalent of that energy, with the data centre's own. None as that."""
        energy = self.energy_j
        if energy is None:
            return None
        kwh = energy.times(PUE / JOULES_PER_KWH / 1000)
        low, high = (self.run.grid,) * 2 if self.run.grid is not None else GRID_RANGE
        grid = GRID if self.run.grid is None else self.run.grid
        return Estimate(kwh.value * grid, kwh.low * low, kwh.high * high)

    def activities_s(self) -> dict[str, float]:
        """Return the wall seconds of each activity."""
        return {str(name): spent * PICO for name, spent in self.timeline.spent_ps.items()}

    def facts(self) -> dict[str, Any]:
        """Return the result as plain data, in SI units."""
        return {
            "model": self.step.model.name,
            "slice": str(self.step.pod),
            "chips": self.step.pod.chips,
            "steps": self.steps,
            "tokens": self.tokens,
            "step_time_s": self.step_time_s,
            "wall_s": self.wall_s._asdict(),
            "goodput": self.goodput,
            "buckets_s": {name: each._asdict() for name, each in self.buckets.items()},
            "activities_s": self.activities_s(),
            "chip_hours": self.chip_hours._asdict(),
            "cost_usd": _fact(self.cost_usd),
            "energy_j": _fact(self.energy_j),
            "co2_kg": _fact(self.co2_kg),
            "checkpoint": None if self.checkpoint is None else self._checkpoint_facts(),
            **{name: each.facts() for name, each in self._surveys().items()},
            "notes": list(self.notes),
        }

    def _surveys(self) -> Mapping[str, FailureSurvey | StragglerSurvey]:
        """Return the surveys that were made, by name."""
        found = {"failures": self.failures, "stragglers": self.stragglers}
        return {name: each for name, each in found.items() if each is not None}

    def _checkpoint_facts(self) -> dict[str, Any]:
        cost = self.checkpoint
        assert cost is not None
        return {
            "bytes": cost.total_bytes,
            "writers": cost.writers,
            "copy_s": cost.copy_s,
            "write_s": cost.write_s,
            "bound": cost.bound,
        }

    def _lines(self) -> Iterator[str]:
        pod = self.step.pod
        title = f"{self.step.title} ({pod.chips} chip{'s' * (pod.chips > 1)})"
        yield from entry("training", title)
        yield from entry("plan", str(self.step.plan))
        what = "tokens" if self.step.model.reads_text else "examples"
        yield from entry(
            "steps",
            f"{self.steps:,} of {format_seconds(self.step_time_s)}, {self.tokens:,} {what}",
        )
        yield ""
        wall = self.wall_s.words(duration)
        yield from entry("wall time", f"{wall}; goodput {self.goodput:.1%}")
        yield ""
        yield from fixed_table(list(self._bucket_rows()), (38, 12, 8))
        yield ""
        for survey in self._surveys().values():
            for name, text in survey.lines():
                yield from entry(name, text)
        if self.checkpoint is not None:
            yield from entry("checkpoint", self.checkpoint.words)
        yield from entry("chip-hours", self.chip_hours.words(format_amount))
        yield from entry("cost", self._or_unknown(self.cost_usd, "USD", "price"))
        yield from entry("energy", self._or_unknown(self.energy_kwh, "kWh of the chips", "power"))
        if self.co2_kg is not None:
            yield from entry("CO2", f"{self.co2_kg.words(format_amount)} kg")
        for note in self.notes:
            yield from entry("note", note)

    def _bucket_rows(self) -> Iterator[tuple[str, ...]]:
        yield "  bucket", "time", "share", "range"
        for name, each in self.buckets.items():
            if each.high:
                share = each.value / self.wall_s.value
                yield f"  {name}", duration(each.value), f"{share:.1%}", each.ends(duration)

    def _or_unknown(self, found: Estimate | None, unit: str, missing: str) -> str:
        if found is None:
            chip = self.step.pod.chip.name
            return f"unknown: {chip} has no published {missing}; write chip.replace({missing}=...)"
        return f"{found.words(format_amount)} {unit}"


def _fact(found: Estimate | None) -> dict[str, float] | None:
    return None if found is None else found._asdict()
