"""What a search makes small, of a step or of a training run, and what it demands besides."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import PlanError, nearest
from tpusim.base.shown_value import shown
from tpusim.base.units import format_dollars
from tpusim.base.value_checks import is_list
from tpusim.bounds.plan_arrays import PlanArrays
from tpusim.hardware import Slice
from tpusim.plan import Input
from tpusim.results import PlanResult
from tpusim.training import TrainingRun, steps_of, wall_seconds

DOLLARS, MILLION = "USD", 1e6

Seconds = TypeVar("Seconds", float, NDArray[np.floating[Any]])


def _seconds(pod: Slice) -> float:
    return 1.0


def _chip_seconds(pod: Slice) -> float:
    return float(pod.chips)


def _dollars(pod: Slice) -> float:
    return _known(pod, "price", pod.usd_per_second())


def _joules(pod: Slice) -> float:
    return _known(pod, "power", pod.watts)


def _known(pod: Slice, name: str, value: float | None) -> float:
    if value is None:
        raise PlanError(
            f"{pod.chip.name} has no published {name}; leave its slices out, or write "
            f"chip.replace({name}=...)"
        )
    return value


@dataclass(frozen=True, slots=True)
class Objective:
    """What a search makes small: seconds of a step, times what a second of the slice counts.

    unit: of its values.
    weight: what a second of a slice counts.
    per_token: divided by the tokens of a step.
    whole_run: of a training run in place of a step.
    """

    unit: str
    weight: Callable[[Slice], float]
    per_token: bool = True
    whole_run: bool = False

    @property
    def shown_unit(self) -> str:
        """The unit in which values are printed: of a million tokens, not of one."""
        return self.unit.replace("per token", "per million tokens")

    def shown(self, value: float) -> str:
        """Return the number of a value as printed, in `shown_unit`."""
        scaled = value * MILLION if self.per_token else value
        if self.unit.startswith(DOLLARS):
            return format_dollars(scaled).removeprefix("$")
        return f"{scaled:.4g}"

    def words(self, value: float) -> str:
        """Return a value with its unit: `$14.33 per million tokens`, `21.6 s`."""
        if self.unit.startswith(DOLLARS):
            return f"${self.shown(value)}{self.shown_unit.removeprefix(DOLLARS)}"
        return f"{self.shown(value)} {self.shown_unit}"

    def value(self, seconds: Seconds, weight: Seconds | float, tokens: Seconds | float) -> Seconds:
        """Return the value of seconds of a step or a run, or of an array of them.

        weight: `self.weight` of the slice.
        tokens: of a step.
        """
        return seconds * weight / tokens if self.per_token else seconds * weight


OBJECTIVES: Mapping[str, Objective] = MappingProxyType(
    {
        "step_time": Objective("s", _seconds, per_token=False),
        "chip_time": Objective("chip-seconds per token", _chip_seconds),
        "cost": Objective("USD per token", _dollars),
        "energy": Objective("J per token", _joules),
        "time_to_train": Objective("s", _seconds, per_token=False, whole_run=True),
        "cost_to_train": Objective("USD", _dollars, per_token=False, whole_run=True),
    }
)
"""`chip_time` is one over tokens per second and chip. Prices are on demand, and power is the mean
in use, both of the chip's file (`[running]`). Those of a training run need one (`Goal.run`)."""

CHIPS, HBM = "chips", "hbm"
LIMITS = (*OBJECTIVES, CHIPS, HBM)
"""What a search takes limits of: its objectives, chips, and the HBM peak as a fraction of what
programs can use."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What a search makes small, the limits of its plans, and what surrounds their steps.

    names: one objective, or two for a Pareto front.
    limits: see `LIMITS`.
    run: of the objectives that are of a training run.
    input: the hosts' input pipeline. A step takes no less beside one, so bounds of steps hold.

    Raise PlanError for an objective of a training run without one, and for a run with its own step.
    """

    names: tuple[str, ...]
    limits: Mapping[str, float]
    run: TrainingRun | None = None
    input: Input | None = None

    def __post_init__(self) -> None:
        if self.run is not None and not isinstance(self.run, TrainingRun):
            raise PlanError(f"run is {shown(self.run)}; write a ts.TrainingRun(tokens=1e12)")
        for name in (*self.names, *self.limited):
            if OBJECTIVES[name].whole_run and self.run is None:
                raise PlanError(
                    f"objective {name!r} is of a training run, and none is given; write run = "
                    "ts.TrainingRun(tokens=1e12), or a section [train]"
                )
        if self.run is not None and self.run.step_time_s is not None:
            raise PlanError(
                "a search compares the steps of plans, but run has a step_time_s of its own; "
                "leave it out"
            )

    @property
    def limited(self) -> tuple[str, ...]:
        """The objectives that have a limit."""
        return tuple(name for name in OBJECTIVES if name in self.limits)

    def value(self, name: str, result: PlanResult) -> float:
        """Return an objective of a simulated plan."""
        objective = OBJECTIVES[name]
        seconds = result.step_time_s
        if objective.whole_run:
            assert self.run is not None
            seconds = wall_seconds(result, self.run)
        tokens = result.plan.global_batch * float(max(result.plan.seq_len, 1))
        return objective.value(seconds, objective.weight(result.pod), tokens)

    def lowest(
        self, name: str, plans: PlanArrays, seconds: NDArray[np.float64]
    ) -> NDArray[np.floating[Any]]:
        """Return lower bounds of an objective, of those of steps: a run takes no less than they."""
        objective, length = OBJECTIVES[name], plans.base.seq_len
        if objective.whole_run:
            assert self.run is not None
            batches, at = np.unique(plans.global_batch, return_inverse=True)
            steps = np.array([steps_of(self.run, int(batch), length) for batch in batches])
            seconds = seconds * steps[at]
        weight = np.array([objective.weight(pod) for pod in plans.pods])
        tokens = plans.global_batch * float(max(length, 1))
        return objective.value(seconds, weight[plans.pod], tokens)


def checked_objectives(given: Any) -> tuple[str, ...]:
    """Return the names of one or two objectives. Raise PlanError for anything else."""
    names = (given,) if isinstance(given, str) or not is_list(given) else tuple(given)
    for name in names:
        if not isinstance(name, str) or name not in OBJECTIVES:
            raise PlanError(f"search.objective is {name!r}; {nearest(str(name), OBJECTIVES)}")
    if not 1 <= len(names) <= 2 or len(set(names)) < len(names):
        raise PlanError(f"search.objective is {given!r}; write one, or two that differ for a front")
    return names


def checked_limits(given: Mapping[str, float]) -> Mapping[str, float]:
    """Return limits by name. Raise PlanError for an unknown name and for no positive number."""
    if not isinstance(given, Mapping):
        raise PlanError(
            f"search.at_most is {shown(given)}; write a table, such as {{'chips': 256}}"
        )
    for name, value in given.items():
        if name not in LIMITS:
            raise PlanError(f"search.at_most has an unknown key {name!r}; {nearest(name, LIMITS)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise PlanError(f"search.at_most.{name} is {value!r}; write a number above 0")
    return dict(given)
