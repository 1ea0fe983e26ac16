"""Arrival times of open loops, in integer picoseconds; the first request arrives at 0."""

import math

import numpy as np

from tpusim.base.errors import TrafficError
from tpusim.traffic.checks import LAST_PS, number
from tpusim.traffic.requests import Column

PS_PER_S = 1e12
MOST_RATE = 1e12
LEAST_BURSTINESS, MOST_BURSTINESS = 1e-3, 1e6


def gamma_arrivals(
    rate: float, burstiness: float, count: int, random: np.random.Generator
) -> Column:
    """Return arrivals whose intervals have a gamma distribution with the mean `1 / rate`.

    As `vllm bench serve --burstiness`: the shape is `burstiness`, the scale
    `1 / (rate burstiness)`, so the coefficient of variation is `1 / sqrt(burstiness)`. A shape of 1
    is the exponential distribution of a Poisson process, an infinite one makes all intervals equal.
    vLLM also scales all times so that the last request arrives at `count / rate`; here they stay
    as drawn (`get_request` of vLLM's `benchmarks/serve.py`).

    rate: requests/s.
    count: requests.

    Raise TrafficError for a rate or a burstiness outside its range.
    """
    mean_ps = PS_PER_S / number(
        *("rate", rate, 1 / MOST_RATE, MOST_RATE),
        " requests per second; Traffic.burst sends all at once",
    )
    intervals = np.ones(count - 1)
    if burstiness != math.inf:
        shape = number(
            *("burstiness", burstiness, LEAST_BURSTINESS, MOST_BURSTINESS),
            ", or math.inf for equal intervals",
        )
        intervals = random.gamma(shape, 1 / shape, size=count - 1)
    times = np.concatenate(([0.0], np.cumsum(intervals))) * mean_ps
    if times[-1] > LAST_PS:
        raise TrafficError(
            f"rate is {rate:g} requests/s, at which the last of {count:,} requests arrives "
            f"after {times[-1] / PS_PER_S / 86400:,.0f} days, and 106 can be simulated; "
            "write a higher rate or fewer requests"
        )
    return np.rint(times).astype(np.int64)


def burst_arrivals(count: int) -> Column:
    """Return arrivals all at 0."""
    return np.zeros(count, dtype=np.int64)
