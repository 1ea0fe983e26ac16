"""What it costs slices to wait for each other."""

from functools import cache

import numpy as np

from tpusim.hardware import Chip


@cache
def expected_maximum(count: int) -> float:
    """The expected largest of `count` independent standard normal variables.

    `n x integral of x phi(x) Phi(x)^(n-1)`: 0 for one, 0.564 for two, 2.07 for 32 (order
    statistics; David and Nagaraja, "Order Statistics", section 3.2).

    >>> round(expected_maximum(2), 4), round(expected_maximum(32), 3)
    (0.5642, 2.07)
    """
    if count == 1:
        return 0.0
    x = np.linspace(-9.0, 9.0, 18001)
    density = np.exp(-x * x / 2) / np.sqrt(2 * np.pi)
    below = np.cumsum(density) * (x[1] - x[0])
    return float((x * count * density * below ** (count - 1)).sum() * (x[1] - x[0]))


def skew_seconds(work_s: float, slices: int, chip: Chip) -> float:
    """Seconds that a step of `work_s` on each slice waits for the slowest of them.

    Each slice's step varies by `slice_jitter` of its length, and gradients that cross slices make
    all wait for the last: the expected maximum, which grows by about 2.3 % of the step a doubling
    (six pairs of runs, see `costs.slice_jitter`).
    """
    return work_s * chip.costs.slice_jitter * expected_maximum(slices)
