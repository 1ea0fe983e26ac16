"""What a search makes small, and what it may demand of a plan besides."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import PlanError, nearest
from tpusim.hardware import Slice

SECONDS_AN_HOUR = 3600.0

Seconds = TypeVar("Seconds", float, NDArray[np.floating[Any]])


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
    weight: what a second of a slice counts.
    per_token: divided by the tokens of a step.
    """

    unit: str
    weight: Callable[[Slice], float]
    per_token: bool = True

    def value(self, seconds: Seconds, weight: Seconds | float, tokens: Seconds | float) -> Seconds:
        """Return the value of a step, or of an array of steps.

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
    }
)
"""`chip_time` is one over tokens per second and chip. Prices are on demand, and power is the mean
in use, both of the chip's file (`[running]`)."""

CHIPS, HBM = "chips", "hbm"
LIMITS = (*OBJECTIVES, CHIPS, HBM)
"""What a search takes limits of: its objectives, chips, and the HBM peak as a fraction of what
programs can use."""


def checked_objectives(given: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of one or two objectives. Raise PlanError for anything else."""
    names = (given,) if isinstance(given, str) else tuple(given)
    for name in names:
        if name not in OBJECTIVES:
            raise PlanError(f"search.objective is {name!r}; {nearest(str(name), OBJECTIVES)}")
    if not 1 <= len(names) <= 2 or len(set(names)) < len(names):
        raise PlanError(f"search.objective is {given!r}; write one, or two that differ for a front")
    return names


def checked_limits(given: Mapping[str, float]) -> Mapping[str, float]:
    """Return limits by name. Raise PlanError for an unknown name and for no positive number."""
    for name, value in given.items():
        if name not in LIMITS:
            raise PlanError(f"search.at_most has an unknown key {name!r}; {nearest(name, LIMITS)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise PlanError(f"search.at_most.{name} is {value!r}; write a number above 0")
    return dict(given)
