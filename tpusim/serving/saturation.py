"""Whether requests arrive faster than a server answers them, and how fast it does."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpusim.server import Served
from tpusim.serving.metrics import PICO, answered

MOST_BLOCKS, LEAST_REQUESTS = 32, 4
"""Parts of the second half of the requests at most, and the requests of each at least."""

SIGMAS, LEAST_EXCESS = 3.0, 0.01
"""Standard errors, and the fraction, by which more requests arrive than start at least."""

FULL = 0.95
"""The part of the throughput of a full server from which a closed loop saturates it."""

_UNKNOWN = float("nan")


class Load(NamedTuple):
    """What arrives at a server, and what it answers. Rates in requests per second.

    offered: the rate at which requests arrive; infinite where all arrive at once.
    sustainable: the rate at which requests start while others wait; NaN unless `saturated`.
    saturated: more requests arrive than start, so that waiting times depend on how long that lasts.
    """

    offered: float
    sustainable: float = _UNKNOWN
    saturated: bool = False


def load_of(served: Served, rate: float = 0.0, users: int = 0) -> Load:
    """Return the load of a server.

    Only a server whose queue is empty at no border between up to `MOST_BLOCKS` parts of the second
    half of the arrivals can be saturated. It is where the rate at which requests start is less than
    that at which they arrive, by more than `LEAST_EXCESS` and `SIGMAS` standard errors. The rate
    that starts is that from the median arrival to the start of the last request, while others
    wait. The rate that arrives is `rate`, without an error; where none is known, it is that of the
    second half of the arrivals, and the test is on the growth of the queue from part to part.
    Requests that all arrive at once, and those of `users` who wait for their answers (a closed
    loop), saturate nothing.

    rate: mean requests that arrive in a second; 0 where it is not known.
    """
    served = answered(served)
    sent, scheduled = np.sort(served.arrival_ps), np.sort(served.scheduled_ps)
    count = len(sent)
    span = float(sent[-1] - sent[0]) * PICO if count else 0.0
    offered = rate or ((count - 1) / span if span else float("inf"))
    blocks = min(MOST_BLOCKS, count // 2 // LEAST_REQUESTS)
    if users or not span or blocks < LEAST_REQUESTS:
        return Load(offered)
    edges = np.linspace(count // 2, count - 1, blocks + 1).astype(np.int64)
    waiting = edges + 1 - np.searchsorted(scheduled, sent[edges], side="right")
    if waiting.min() < 1:
        return Load(offered)
    starts = scheduled[np.searchsorted(scheduled, sent[edges[0]], side="right") - 1 :]
    sustainable, error = _rate(starts)
    excess = offered / sustainable - 1
    if not rate:
        growth = np.diff(waiting) / np.diff(edges)
        excess, error = float(growth.mean()), float(growth.std(ddof=1)) / blocks**0.5
    if excess <= max(LEAST_EXCESS, SIGMAS * error):
        return Load(offered)
    return Load(offered, sustainable, saturated=True)


def start_rate(served: Served) -> float:
    """Return the requests that start in a second, from the median one to the last.

    Neither the time in which the server fills nor that in which it drains is in it. A closed loop
    saturates a server where this is at least `FULL` of what a server starts whose users fill it.
    """
    starts = np.sort(answered(served).scheduled_ps)
    return _rate(starts[len(starts) // 2 :])[0]


def _rate(starts: NDArray[np.int64]) -> tuple[float, float]:
    """Return the starts in a second, and the relative standard error of this rate."""
    blocks = max(min(MOST_BLOCKS, len(starts) // LEAST_REQUESTS), 2)
    edges = np.linspace(0, len(starts) - 1, blocks + 1).astype(np.int64)
    times = np.diff(starts[edges]) * PICO / np.maximum(np.diff(edges), 1)
    mean = float(starts[-1] - starts[0]) * PICO / max(len(starts) - 1, 1)
    if not mean:
        return float("inf"), 0.0
    return 1 / mean, float(times.std(ddof=1)) / mean / blocks**0.5
