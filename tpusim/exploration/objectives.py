"""What a search makes small: of a step, or of a training run around it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import PlanError
from tpusim.hardware import Slice
from tpusim.results import PlanResult
from tpusim.training import TrainingRun, steps_of, wall_seconds

SECONDS_AN_HOUR = 3600.0


def _seconds(pod: Slice) -> float:
    return 1.0


def _chip_seconds(pod: Slice) -> float:
    return float(pod.chips)


def _dollars(pod: Slice) -> float:
    return pod.chips * _known(pod, "price") / SECONDS_AN_HOUR


def _joules(pod: Slice) -> float:
    return pod.chips * _known(pod, "power")


def _known(pod: Slice, name: str) -> float:
    value: float | None = getattr(pod.chip, name)
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
    per_token: divided by the tokens of a step.
    whole_run: of a training run in place of a step.
    """

    unit: str
    weight: Callable[[Slice], float]
    per_token: bool = True
    whole_run: bool = False


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
in use, both of the chip's file (`[running]`). Those of a training run need one (`run`)."""


class Batches(NamedTuple):
    """The batches of plans: sequences of each, and tokens of a sequence of all."""

    global_batch: NDArray[np.int64]
    seq_len: int


@dataclass(frozen=True, slots=True)
class ObjectiveValues:
    """The objectives of a search, and what their values are.

    run: of those that are of a training run.
    """

    names: tuple[str, ...]
    run: TrainingRun | None

    def __post_init__(self) -> None:
        for name in self.names:
            if OBJECTIVES[name].whole_run and self.run is None:
                raise PlanError(
                    f"objective {name!r} is of a training run, and none is given; write run = "
                    "ts.TrainingRun(tokens=1e12)"
                )
        if self.run is not None and self.run.step_time_s is not None:
            raise PlanError(
                "a search compares the steps of plans, but run has a step_time_s of its own; "
                "leave it out"
            )

    def of(self, result: PlanResult) -> tuple[float, ...]:
        """Return the value of each objective."""
        return tuple(self._value(OBJECTIVES[name], result) for name in self.names)

    def _value(self, objective: Objective, result: PlanResult) -> float:
        weight = objective.weight(result.pod)
        if objective.whole_run:
            assert self.run is not None
            return wall_seconds(result, self.run) * weight
        tokens = result.plan.global_batch * max(result.plan.seq_len, 1)
        return result.step_time_s * weight / (tokens if objective.per_token else 1)

    def lowest(
        self, name: str, seconds: NDArray[np.float64], weights: NDArray[np.float64], plans: Batches
    ) -> NDArray[np.float64]:
        """Return lower bounds of an objective, of those of steps.

        A run takes no less than its steps.

        weights: what a second of each plan's slice counts.
        """
        objective = OBJECTIVES[name]
        if objective.whole_run:
            assert self.run is not None
            steps = [steps_of(self.run, int(n), plans.seq_len) for n in plans.global_batch]
            bound: NDArray[np.float64] = seconds * weights * np.array(steps)
            return bound
        tokens = plans.global_batch * max(plans.seq_len, 1)
        return seconds * weights / (tokens if objective.per_token else 1)
