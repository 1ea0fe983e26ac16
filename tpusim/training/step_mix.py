"""The steps of a long training run with stragglers, as a mix of steps with and without them."""

from dataclasses import dataclass

import numpy as np

from tpusim.failures import units_of
from tpusim.hardware import Slice
from tpusim.results import PlanResult
from tpusim.training.slow_steps import slowdowns
from tpusim.training.straggler_forms import StepLaw, long_run_mean, paused_steps, slow_steps
from tpusim.training.stragglers import HOUR_S, Stragglers


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMix:
    """The steps of a long run with stragglers.

    ideal_s: seconds of a step without any.
    laws: of the steps without and with a slow chip.
    slow_time: share of the time in which a chip is slow.
    """

    ideal_s: float
    laws: tuple[StepLaw, StepLaw]
    slow_time: float

    @property
    def factor(self) -> float:
        """`S`: mean time of a step over that without stragglers, at least 1."""
        return max(1.0, long_run_mean(self.laws, self.slow_time) / self.ideal_s)

    @property
    def slow_share(self) -> float:
        """Share of the steps that meet a slow chip."""
        return slow_steps(self.laws, self.slow_time)

    @property
    def delayed_share(self) -> float:
        """Share of the steps that a pause delays."""
        shares = (1 - self.slow_share, self.slow_share)
        chances = (float(law.chances[law.lengths > law.lengths[0]].sum()) for law in self.laws)
        return sum(share * chance for share, chance in zip(shares, chances, strict=True))


def step_mix(step: PlanResult, asked: Stragglers, step_s: float) -> StepMix:
    """Return the steps of a long run with stragglers, of `step_s` seconds without."""
    usual, slow = (step_s * each for each in slowdowns(step, asked))
    slow_time = 0.0 if asked.chips is None else asked.chips.slow_time(step.pod.chips)
    synchronous = step.plan.loop == "synchronous"
    laws = (_law(step.pod, asked, length, synchronous) for length in (usual, slow))
    fast, slowed = laws
    return StepMix(ideal_s=step_s, laws=(fast, slowed), slow_time=slow_time)


def _law(pod: Slice, asked: Stragglers, step_s: float, synchronous: bool) -> StepLaw:
    """Return the lengths of steps that take so many seconds without pauses."""
    pauses = asked.pauses
    if pauses is None:
        return StepLaw(np.array([step_s]), np.ones(1))
    lead = pauses.lead_s
    if lead is None:
        lead = 0.0 if synchronous else step_s
    hosts = 1 if pauses.synchronised else units_of(pod)["machine"]
    return paused_steps(step_s, pauses.per_hour / HOUR_S, pauses.seconds, lead, hosts)


def straggler_factor(step: PlanResult, asked: Stragglers | None, step_s: float) -> float:
    """Return the mean time of a step with stragglers over that without; 1 where none is asked."""
    return 1.0 if asked is None else step_mix(step, asked, step_s).factor
