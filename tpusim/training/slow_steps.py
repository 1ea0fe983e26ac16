"""The steps of a run with stragglers: with a slow chip, on slices that differ, after pauses."""

from functools import lru_cache
from itertools import product

import numpy as np

from tpusim.base.errors import PlanError
from tpusim.base.same import Same
from tpusim.failures import units_of
from tpusim.hardware import Slice
from tpusim.hardware.chip_fields import Dims
from tpusim.hardware.slow_parts import SlowChip, SlowSlice
from tpusim.results import PlanResult
from tpusim.simulation import simulate
from tpusim.training.straggler_forms import StepLaw, StepMix, paused_steps, slowest_deviation
from tpusim.training.stragglers import HOUR_S, SlowChips, Stragglers, UnevenSlices

KEPT = 16
"""Slowdowns that are kept, so that no step is simulated twice."""


def step_mix(step: PlanResult, asked: Stragglers, step_s: float) -> StepMix:
    """Return the steps of a long run with stragglers, of `step_s` seconds without."""
    usual, slow = (step_s * each for each in _slowdowns(step, asked))
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


def _slowdowns(step: PlanResult, asked: Stragglers) -> tuple[float, float]:
    """Return the time of a step without and with a slow chip, over that of the simulated step.

    Both are on the slices that `asked` has. One slow chip stands for several: all wait for the
    slowest, wherever it is.

    Raise PlanError for slices that the machine does not have, and for a pipeline whose slow chips
    cannot be simulated.
    """
    slowest = 1.0 if asked.slices is None else _slowest_share(step.pod, asked.slices)
    chips = asked.chips
    if chips is None:
        return (_slowdown(step, None, slowest),) * 2
    if chips.slowdown is not None:
        usual = _slowdown(step, None, slowest)
        return usual, usual * chips.slowdown
    usual, slow = (_slowdown(step, each, slowest) for each in (None, chips))
    alone = _slowdown(step, chips, 1.0)
    return usual, max(usual, slow, alone)


def _slowest_share(pod: Slice, asked: UnevenSlices) -> float:
    """Return the speed of the slowest slice, in the mean, over that of the simulated step.

    Raise PlanError for one slice, for another number of shares, and where no speed is left.
    """
    count, shares = pod.num_slices, asked.shares
    if shares is not None:
        if len(shares) != count:
            raise PlanError(
                f"stragglers.slices.shares has {len(shares)}, and {pod} is {count} "
                f"slice{'s' * (count > 1)}; write a share for each"
            )
        return min(shares)
    if count == 1:
        raise PlanError(
            f"stragglers.slices.spread is given, and {pod} is one slice, which differs from none; "
            "write several slices, or leave it out"
        )
    assert asked.spread is not None
    left = 1 - asked.spread * slowest_deviation(count)
    if left <= 0:
        raise PlanError(
            f"stragglers.slices.spread is {asked.spread:g}, with which the slowest of {count} "
            "slices has no speed left; write a smaller spread"
        )
    return left


def _slowdown(step: PlanResult, chips: SlowChips | None, slowest: float) -> float:
    if chips is None and slowest == 1:
        return 1.0
    speeds = (1.0, 1.0) if chips is None else (chips.compute, chips.hbm)
    return _simulated(Same((step,)), speeds, slowest)


@lru_cache(KEPT)
def _simulated(held: Same, chip: tuple[float, float], slowest: float) -> float:
    """Return the time of a step with a slow chip and a slow slice over that of the step held."""
    (step,) = held.objects
    assert isinstance(step, PlanResult)
    slower = _slower(step.pod, chip, slowest)
    fed = None if step.input is None else step.input.given
    try:
        longer = simulate(step.model, step.plan, slower, input=fed).step_time_s
    except PlanError as error:
        instead = "; or write stragglers.chips.slowdown" if chip != (1.0, 1.0) else ""
        raise PlanError(f"stragglers: {error}{instead}") from None
    return max(1.0, longer / step.step_time_s)


def _slower(pod: Slice, chip: tuple[float, float], slowest: float) -> Slice:
    """Return a machine with one more slow chip, and with all of slice 0 slower."""
    slices = [each for each in pod.slow.slices if each.slice or slowest == 1]
    if slowest < 1:
        left = next((each for each in pod.slow.slices if not each.slice), SlowSlice(0))
        slices.append(SlowSlice(0, slowest * left.compute, slowest * left.hbm))
    chips = list(pod.slow.chips)
    if chip != (1.0, 1.0):
        chips.append(SlowChip(_healthy_place(pod), *chip))
    return pod.changed(slow={"chips": chips, "links": pod.slow.links, "slices": slices})


def _healthy_place(pod: Slice) -> Dims:
    """Return the first chip that is as fast as its slice. Raise PlanError if there is none."""
    taken = {each.at for each in pod.slow.chips}
    for at in product(*map(range, pod.topology.dims)):
        if at not in taken:
            return at
    raise PlanError("stragglers.chips: every chip of the slice is slow already; leave it out")
