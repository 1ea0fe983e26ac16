"""Measured steps as rows: each run beside its simulation, on chips with factors on trial."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import exp, log
from typing import ClassVar

import numpy as np

from tpusim.base.errors import FileError
from tpusim.calibration.estimate import Rows
from tpusim.hardware import FACTORS, MOST, Calibration, Chip, Factor, Slice
from tpusim.runfile import SimulationRun
from tpusim.simulation import simulate

STEPS = "steps"


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

    def pod(self, pod: Slice) -> Slice:
        """Return a slice whose chips have the factors."""
        logs = zip(FACTORS, self.logs, strict=True)
        pairs = ((name, exp(value)) for name, value in logs if value)
        made = tuple((name, Factor(each, each, each)) for name, each in pairs)
        found = Calibration(chip=pod.chip.generation, factors=made, name="a trial")
        return pod.changed(chip=pod.chip.calibrated(found))


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A run and the seconds of its step; simulated on the placement of its first simulation."""

    run: SimulationRun
    step_s: float

    @classmethod
    def of(cls, run: SimulationRun) -> "MeasuredStep":
        """Return the measured step of a run file. Raise FileError if it has none."""
        if run.measured is None:
            raise FileError(
                f"{run.where}: no measured step; write a section [measured] with step_s = 21.6, or "
                "give the profile of a step"
            )
        if run.pod.chip.calibration is not None:
            raise FileError(
                f"{run.where}: slice.calibration is given, and factors are learnt of the chip as "
                "it is in the catalogue; leave it out"
            )
        return cls(run, run.measured.step_s)

    @property
    def chip(self) -> Chip:
        """The chip of the slice."""
        return self.run.pod.chip

    def rows(self, trial: TrialFactors, factors: Sequence[str]) -> Rows:
        """Return the row of the step: its ratio, and elasticities by finite differences."""
        run = self.run
        first = simulate(run.model, run.plan, trial.pod(run.pod), input=run.input)
        ratio = log(self.step_s / first.step_time_s)
        if abs(ratio) > log(MOST):
            raise FileError(
                f"{run.where}: step_s is {self.step_s:g}, and {first.step_time_s:.3g} s are "
                f"predicted; beyond a factor of {MOST:g} it is of something else; write step_s in "
                "seconds, of this model, plan and slice"
            )
        placed = run.plan.replace(placement=first.placement.written or None)
        grown = np.zeros((1, len(FACTORS)))
        for name in factors:
            pod = trial.longer(name).pod(run.pod)
            longer = simulate(run.model, placed, pod, input=run.input)
            grown[0, FACTORS.index(name)] = log(longer.step_time_s / first.step_time_s)
        return Rows(np.array([ratio]), grown / trial.STEP, (STEPS,), np.ones(1))

    def left_over(self, trial: TrialFactors) -> tuple[tuple[str, str | float | bool], ...]:
        """Return the features of the run under these factors, and the residual that is left."""
        run = self.run
        found = simulate(run.model, run.plan, trial.pod(run.pod), input=run.input)
        facts = asdict(found.features) | {"residual": log(self.step_s / found.step_time_s)}
        return tuple(facts.items())
