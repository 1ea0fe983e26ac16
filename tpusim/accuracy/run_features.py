"""The features of a predicted run by which it is compared with the measured ones."""

from dataclasses import dataclass
from math import isfinite, log10

from tpusim.base.errors import PlanError


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFeatures:
    """What makes the errors of two runs alike.

    chip: the generation, such as `v5p`.
    style: of the compiled program, `plain` or `maxtext` (`Plan.style`).
    experts, quantised, pipelined: True for a model with experts, int8 or fp8 matmuls, and a
        pipeline.
    params: weights of the model.
    step_s: predicted seconds per step.
    mfu: predicted; with `params` and `step_s` it stands for the tokens of a device.
    exposed, vector, attention: fractions of the predicted step: communication and waits that no
        compute hides, vector work, attention.
    transformer: True for a decoder or an encoder, as nearly all of the measured runs are.

    Raise PlanError for numbers that are not positive (the fractions: negative), or not finite.
    """

    chip: str
    style: str
    experts: bool
    quantised: bool
    pipelined: bool
    params: float
    step_s: float
    mfu: float
    exposed: float
    vector: float
    attention: float
    transformer: bool = True

    def __post_init__(self) -> None:
        for name in ("params", "step_s", "mfu"):
            value = getattr(self, name)
            if not (isfinite(value) and value > 0):
                raise PlanError(f"{name} is {value!r}; a predicted run has a number above 0")
        for name in ("exposed", "vector", "attention"):
            value = getattr(self, name)
            if not (isfinite(value) and value >= 0):
                raise PlanError(f"{name} is {value!r}; write a fraction of the step, from 0")

    @property
    def size(self) -> tuple[float, float, float]:
        """Decimal logarithms of parameters, seconds and MFU."""
        return log10(self.params), log10(self.step_s), log10(self.mfu)

    @property
    def shares(self) -> tuple[float, float, float]:
        """Fractions of the step: exposed, vector, attention."""
        return self.exposed, self.vector, self.attention

    @property
    def apart(self) -> tuple[bool, bool]:
        """What two runs must have in common to be compared at all."""
        return self.pipelined, self.transformer

    @property
    def kinds(self) -> tuple[str, bool, bool]:
        """What two runs have in common or not: style, experts, quantised matmuls."""
        return self.style, self.experts, self.quantised
