"""Closed forms of steps that wait for stragglers.

They hold for slow chips that stay slow for long beside a step, in a run that is long beside that.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import erf, lgamma, log, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import PlanError

MOST_PAUSES = 10_000
"""Mean pauses of a host in a step, at most."""

WIDEST = 9.0
"""Standard deviations of a normal distribution beyond which nothing is counted."""


class StepLaw(NamedTuple):
    """The lengths of steps of one kind, in seconds, shortest first, and the chance of each."""

    lengths: NDArray[np.float64]
    chances: NDArray[np.float64]

    @property
    def mean(self) -> float:
        """The mean length."""
        return float(self.lengths @ self.chances)


def most_pauses(mean: float, hosts: int) -> NDArray[np.float64]:
    """Return the chances that the host with the most pauses of a step has 0, 1, 2, ... of them.

    mean: pauses of one host in a step, whose number has a Poisson distribution.

    The largest of n independent numbers is at most k with the chance `F(k)^n`, so a share of
    `1 - (1 - p)^n` of the steps meets a pause, if a host pauses in a step with the chance p.
    """
    if not mean:
        return np.ones(1)
    last = int(mean + 12 * sqrt(mean) + 40)
    counts = np.arange(last + 1)
    logs = np.array([lgamma(count + 1) for count in range(last + 1)])
    chances = np.exp(counts * log(mean) - mean - logs)
    above = np.minimum(np.append(np.cumsum(chances[::-1])[::-1][1:], 0.0), 1.0)
    with np.errstate(divide="ignore"):
        at_most = np.exp(hosts * np.log1p(-above))
    return np.diff(at_most, prepend=0.0)


def paused_steps(
    step_s: float, per_second: float, pause_s: float, lead_s: float, hosts: int
) -> StepLaw:
    """Return the lengths of steps that all hosts have to start.

    step_s: a step without pauses.
    per_second: pauses of a host per second of steps.
    pause_s: the length of a pause.
    lead_s: seconds by which hosts are ahead, without which a pause delays the step.
    hosts: hosts that pause independently of each other; 1 for all at once.

    The host with the most pauses k delays the step by `max(0, k pause - lead)`.

    Raise PlanError for more than `MOST_PAUSES` pauses in a step.
    """
    mean = per_second * step_s
    if mean > MOST_PAUSES:
        raise PlanError(
            f"a host pauses {mean:,.0f} times in a step of {step_s:.3g} s; write fewer and longer "
            f"pauses in stragglers.pauses, at most {MOST_PAUSES:,} per step"
        )
    chances = most_pauses(mean, hosts)
    delays = np.maximum(0.0, np.arange(len(chances)) * pause_s - lead_s)
    return StepLaw(step_s + delays, chances)


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
    def mean_s(self) -> float:
        """Mean seconds of a step.

        Steps per second are a mean over time, so `1 / mean = (1 - q) / fast + q / slow`.
        """
        fast, slow = self.laws
        return 1 / ((1 - self.slow_time) / fast.mean + self.slow_time / slow.mean)

    @property
    def factor(self) -> float:
        """`S`: mean time of a step over that without stragglers, at least 1."""
        return max(1.0, self.mean_s / self.ideal_s)

    @property
    def slow_share(self) -> float:
        """Share of the steps that meet a slow chip."""
        return self.slow_time * self.mean_s / self.laws[1].mean

    @property
    def delayed_share(self) -> float:
        """Share of the steps that a pause delays."""
        shares = (1 - self.slow_share, self.slow_share)
        chances = (float(law.chances[law.lengths > law.lengths[0]].sum()) for law in self.laws)
        return sum(share * chance for share, chance in zip(shares, chances, strict=True))

    def quantiles_s(self, shares: Sequence[float]) -> dict[float, float]:
        """Return the seconds of a step by quantile."""
        weights = (1 - self.slow_share, self.slow_share)
        lengths = np.concatenate([law.lengths for law in self.laws])
        pairs = zip(weights, self.laws, strict=True)
        chances = np.concatenate([weight * law.chances for weight, law in pairs])
        order = np.argsort(lengths, kind="stable")
        places = np.searchsorted(np.cumsum(chances[order]), np.array(shares) - 1e-12)
        found = lengths[order][np.minimum(places, len(order) - 1)]
        return dict(zip(shares, found.tolist(), strict=True))


def slowest_deviation(count: int) -> float:
    """Return by how many standard deviations the largest of some normal numbers exceeds the mean.

    >>> round(slowest_deviation(2) ** -2, 5)  # pi
    3.14159
    """
    x = np.linspace(-WIDEST, WIDEST, 4001)
    below = np.array([0.5 * (1 + erf(each / sqrt(2))) for each in x])
    excess = 1 - below**count - np.heaviside(-x, 0.5)
    return float(excess.sum() * (x[1] - x[0]))
