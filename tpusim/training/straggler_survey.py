"""Stragglers of a training run: how much longer its steps take, and what mending each cause gains.

After Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis", OSDI
2025: `S = T / T_ideal`, and `1 - 1/S` of the time is wasted.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpusim.base.short_repr import ShortRepr
from tpusim.base.units import format_seconds
from tpusim.engine.clock import picoseconds
from tpusim.engine.straggling_steps import StepState, run_steps, slow_times
from tpusim.results import PICO, PlanResult
from tpusim.training.failure_survey import random_numbers, random_streams
from tpusim.training.slow_steps import step_mix
from tpusim.training.straggler_forms import StepLaw, StepMix
from tpusim.training.stragglers import Stragglers

QUANTILES = (0.5, 0.9, 0.99)
MOST_EVENTS = 100_000
"""Events of all random runs together: each takes 10 us."""

WORDS = {"chips": "slow chips", "pauses": "host pauses", "slices": "uneven slices"}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StragglerSurvey(ShortRepr):
    """What stragglers do to a training run.

    asked: the stragglers of the run.
    mix: its steps, in closed form.
    without: `S` of the run where one cause is mended, by its key.
    simulated: `S` of each random run, in order of their numbers.
    steps: steps of each of these.
    """

    asked: Stragglers
    mix: StepMix
    without: Mapping[str, float]
    simulated: NDArray[np.float64]
    steps: int

    @property
    def factor(self) -> float:
        """`S`, the mean time of a step over that without stragglers."""
        return self.mix.factor

    @property
    def waste(self) -> float:
        """Share of the time of the steps that stragglers waste, `1 - 1/S`."""
        return 1 - 1 / self.factor

    def gains(self) -> dict[str, float]:
        """Return the share of the time of the steps that mending each cause alone saves."""
        return {name: 1 - each / self.factor for name, each in self.without.items()}

    def quantiles_s(self) -> dict[float, float]:
        """Return the seconds of a step by quantile."""
        return self.mix.quantiles_s(QUANTILES)

    def facts(self) -> dict[str, Any]:
        """Return the survey as plain data, in SI units."""
        return {
            "ideal_step_s": self.mix.ideal_s,
            "factor": self.factor,
            "waste": self.waste,
            "quantiles_s": {f"{share:g}": each for share, each in self.quantiles_s().items()},
            "steps_with_a_slow_chip": self.mix.slow_share,
            "steps_with_a_delay": self.mix.delayed_share,
            "factor_without": dict(self.without),
            "gains": self.gains(),
            "simulated": {
                "runs": len(self.simulated),
                "steps": self.steps,
                "seed": self.asked.seed,
                "mean_factor": float(self.simulated.mean()),
                "quantiles": {f"{q:g}": float(np.quantile(self.simulated, q)) for q in (0.1, 0.9)},
            },
        }

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield what is printed, as names and texts."""
        ideal = format_seconds(self.mix.ideal_s)
        yield (
            "stragglers",
            f"S {self.factor:.3f}: a step takes {format_seconds(self.mix.ideal_s * self.factor)} "
            f"in the mean and {ideal} without; {self.waste:.1%} wasted",
        )
        spread = ", ".join(
            f"{share:.0%} within {format_seconds(each)}"
            for share, each in self.quantiles_s().items()
        )
        yield "  steps", spread
        low, high = np.quantile(self.simulated, (0.1, 0.9))
        yield (
            "  at random",
            f"S {self.simulated.mean():.3f} in the mean of {len(self.simulated):,} runs of "
            f"{self.steps:,} steps, {low:.3f} to {high:.3f} in eight of ten",
        )
        for name, gain in sorted(self.gains().items(), key=lambda each: -each[1]):
            what = f"S {self.without[name]:.3f} without {WORDS[name]}"
            yield f"  {name}", f"{what}, which saves {gain:.1%} of the time"


def survey_stragglers(
    step: PlanResult, asked: Stragglers, step_s: float, steps: int
) -> StragglerSurvey:
    """Return what stragglers do to a run of so many steps, in closed form and at random.

    step_s: seconds of a step without stragglers.
    """
    mix = step_mix(step, asked, step_s)
    without = {name: step_mix(step, asked.without(name), step_s).factor for name in asked.causes}
    mean_slow = 0.0 if asked.chips is None else asked.chips.mean_slow(step.pod.chips)
    duration_s = 1.0 if asked.chips is None else asked.chips.duration_s
    simulated = _simulated_steps(mix, mean_slow, duration_s, steps, asked.runs)
    factors_at_random = [
        _random_factor(mix, mean_slow, duration_s, simulated, asked.seed, number)
        for number in range(asked.runs)
    ]
    return StragglerSurvey(
        asked=asked,
        mix=mix,
        without=without,
        simulated=np.array(factors_at_random),
        steps=simulated,
    )


def _simulated_steps(
    mix: StepMix, mean_slow: float, duration_s: float, steps: int, runs: int
) -> int:
    """Return the steps of each random run: all, unless they have too many events."""
    events = mix.delayed_share + 2 * mean_slow * mix.ideal_s * mix.factor / duration_s
    return (
        steps if events * steps * runs <= MOST_EVENTS else max(1, int(MOST_EVENTS / events / runs))
    )


def _random_factor(
    mix: StepMix, mean_slow: float, duration_s: float, steps: int, seed: int, number: int
) -> float:
    """Return `S` of one random run: the same seed and number have the same luck."""
    times, pauses = random_streams(seed, number, 2)
    exponential = random_numbers(times, exponential=True).__next__
    found = run_steps(
        [_state(law) for law in mix.laws],
        slow_times(mean_slow, duration_s / PICO, exponential),
        steps,
        random_numbers(pauses).__next__,
    )
    total = sum(length * count for length, count in found.items())
    return total * PICO / (steps * mix.ideal_s)


def _state(law: StepLaw) -> StepState:
    delayed = law.lengths > law.lengths[0]
    chances = law.chances[delayed]
    whole = float(chances.sum())
    if not whole:
        return StepState(picoseconds(law.lengths[0]))
    below = np.cumsum(chances) / whole
    below[-1] = 1.0
    lengths = tuple(picoseconds(each) for each in law.lengths[delayed].tolist())
    return StepState(picoseconds(law.lengths[0]), lengths, tuple(below.tolist()), min(1.0, whole))
