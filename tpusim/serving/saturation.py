"""Whether requests arrive faster than a server answers them, and how fast it does."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpusim.server import Served
from tpusim.serving.metrics import PICO

MOST_BLOCKS, LEAST_ARRIVALS = 32, 4
"""Parts of the second half of the arrivals at most, and the arrivals of each at least."""

SIGMAS = 3.0
"""Standard errors by which the queue grows at least."""

LEAST_GROWTH = 0.01
"""Requests that the queue grows by at least, for each that arrives."""


class Load(NamedTuple):
    """What arrives at a server, and what it answers. Rates in requests per second.

    offered: the rate at which requests arrive; infinite where all arrive at once.
    sustainable: the rate at which requests start while others wait; NaN unless `saturated`.
    growth: requests by which the queue grows, for each that arrives.
    saturated: the queue grows as long as requests arrive, so that waiting times depend on how long
        that is.
    """

    offered: float
    sustainable: float
    growth: float
    saturated: bool


def load_of(served: Served, users: int = 0) -> Load:
    """Return the load of a server.

    Over the second half of the arrivals, cut into up to `MOST_BLOCKS` parts of equally many, the
    queue (requests sent and not yet in a step) grows by some number in each part. A server is
    saturated where the mean of these is more than `SIGMAS` standard errors above 0 and more than
    `LEAST_GROWTH` of the arrivals. A queue that is stable has no such trend, as what it gains it
    loses again. Requests that all arrive at once, and those of `users` who wait for their answers
    (a closed loop), saturate nothing.
    """
    sent = np.sort(served.arrival_ps)
    count = len(sent)
    span = float(sent[-1] - sent[0]) * PICO if count else 0.0
    offered = (count - 1) / span if span else float("inf")
    blocks = min(MOST_BLOCKS, count // 2 // LEAST_ARRIVALS)
    if users or not span or blocks < LEAST_ARRIVALS:
        return Load(offered, float("nan"), 0.0, False)
    scheduled = np.sort(served.scheduled_ps)
    edges = np.linspace(count // 2, count - 1, blocks + 1).astype(np.int64)
    waiting = edges + 1 - np.searchsorted(scheduled, sent[edges], side="right")
    steps = np.diff(waiting)
    mean, error = float(steps.mean()), float(steps.std(ddof=1)) / blocks**0.5
    growth = mean * blocks / float(edges[-1] - edges[0])
    saturated = mean > SIGMAS * error and growth > LEAST_GROWTH
    rate = _started_rate(scheduled, int(sent[edges[0]])) if saturated else float("nan")
    return Load(offered, rate, growth, saturated)


def _started_rate(scheduled: NDArray[np.int64], since: int) -> float:
    """Return the requests that start in a second, from a moment to the start of the last one."""
    before = int(np.searchsorted(scheduled, since, side="right"))
    return float(len(scheduled) - before) / (float(scheduled[-1] - since) * PICO)
