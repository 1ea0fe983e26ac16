"""The span of a prediction over what the source of a run leaves open."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tpusim.base.errors import blame
from tpusim.results import PlanResult
from tpusim.runfile import Measured, SimulationRun


class StepSpan(NamedTuple):
    """Predicted seconds per step over all combinations of the open values.

    low_s, high_s: the shortest and the longest step.
    left_out: combinations that do not fit in HBM, so that they cannot have run.
    """

    low_s: float
    high_s: float
    left_out: int = 0

    def has(self, step_s: float) -> bool:
        """Return True if a measured step is in the span."""
        return self.low_s <= step_s <= self.high_s


def open_span(
    measured: Measured,
    result: PlanResult,
    plausible: Sequence[SimulationRun],
    simulated: Callable[[SimulationRun], PlanResult],
) -> StepSpan | None:
    """Return the span of a run's prediction; None where its source leaves nothing open.

    measured: of the run. Where its seconds are derived from a rate, those of a combination are of
        as many examples, tokens or FLOPs as the run itself has.
    result: of the run itself, which is in the span.
    plausible: the other runs that it may have been (`SimulationRun.plausible`).
    simulated: returns the result of a run.

    Combinations that do not fit in HBM are left out, if the run itself fits. Raise a TpusimError
    that names the values for a combination that cannot be simulated.
    """
    if not plausible:
        return None
    others = []
    for run in plausible:
        with blame(run.where):
            others.append(simulated(run))
    kept = [other for other in others if other.fits or not result.fits]
    work = _work(measured, result)
    steps = [
        each.step_time_s * (work / _work(measured, each) if work else 1) for each in (result, *kept)
    ]
    return StepSpan(min(steps), max(steps), len(others) - len(kept))


def _work(measured: Measured, result: PlanResult) -> float:
    """Return the work of a step, of which the source gives a rate; 0 where it gives the step."""
    if not measured.step_is.startswith("derived"):
        return 0
    step = result.step_time_s
    if measured.examples_per_s is not None:
        return result.plan.global_batch
    if measured.tokens_per_s is not None:
        return result.tokens_per_s * step
    return 0 if measured.tflops_per_device is None else result.tflops_per_device * step
