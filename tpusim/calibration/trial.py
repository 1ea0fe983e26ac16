"""Factors on trial: the chips that have them."""

from dataclasses import dataclass
from math import exp
from typing import ClassVar

from tpusim.hardware import FACTORS, Calibration, Chip, Factor, Slice


@dataclass(frozen=True, slots=True)
class TrialFactors:
    """Logarithms of factors, in the order of `FACTORS`, for the chips of one generation."""

    STEP: ClassVar[float] = 0.02
    """By how much a factor's logarithm grows for finite differences."""

    logs: tuple[float, ...] = (0.0,) * len(FACTORS)

    def longer(self, name: str) -> "TrialFactors":
        """Return the trial with one factor larger by `STEP`."""
        at = FACTORS.index(name)
        grown = (value + self.STEP * (place == at) for place, value in enumerate(self.logs))
        return TrialFactors(tuple(grown))

    def chip(self, chip: Chip) -> Chip:
        """Return a chip with the factors."""
        factors = {name: exp(value) for name, value in zip(FACTORS, self.logs, strict=True)}
        made = tuple(
            (name, Factor(each, each, each)) for name, each in factors.items() if each != 1
        )
        return chip.calibrated(Calibration(chip=chip.generation, factors=made, name="a trial"))

    def pod(self, pod: Slice) -> Slice:
        """Return a slice of such chips."""
        return pod.changed(chip=self.chip(pod.chip))
