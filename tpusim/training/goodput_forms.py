"""Closed forms of a training run that fails: the best checkpoint interval, and what is lost.

All take failures that come at a constant rate, and lengths in the same unit.
"""

from math import exp, expm1, sqrt


def young_interval(stop: float, mttf: float) -> float:
    """Return the useful time between checkpoints that Young recommends: `sqrt(2 stop mttf)`.

    stop: for which a checkpoint stops the steps.
    mttf: mean time between failures.

    Source: J. W. Young, Communications of the ACM 17(9), 1974.
    """
    return sqrt(2 * stop * mttf)


def daly_interval(stop: float, mttf: float) -> float:
    """Return the useful time between checkpoints that Daly recommends, of a higher order.

    Source: J. T. Daly, Future Generation Computer Systems 22(3), 2006, equation 37.
    """
    if stop >= 2 * mttf:
        return mttf
    ratio = stop / (2 * mttf)
    return sqrt(2 * stop * mttf) * (1 + sqrt(ratio) / 3 + ratio / 9) - stop


def best_interval(stop: float, mttf: float) -> float:
    """Return the useful time between checkpoints that makes `wall_over_useful` least.

    Its derivative is 0 where `1 - x = exp(-x - stop / mttf)`, with x the interval over `mttf`;
    neither the restart nor the delay of a checkpoint moves it. Solved by Newton's method.
    """
    share = stop / mttf
    x = min(sqrt(2 * share), 1.0)
    for _ in range(60):
        power = exp(-x - share)
        slope = 1 - power
        step = (1 - x - power) / slope if slope else 0.0
        x = max(x + step, 0.0)
        if abs(step) <= 1e-15 * max(x, 1e-300):
            break
    return x * mttf


def wall_over_useful(
    interval: float, stop: float, mttf: float, restart: float, delay: float = 0.0
) -> float:
    """Return the wall time over the useful time of a long run.

    interval: useful time between checkpoints.
    stop: for which each stops the steps.
    restart: from a failure to the next step; a failure in that time begins it anew.
    delay: from the end of the stop until a checkpoint outlives a failure.

    After a restart, checkpoint k is kept if no failure comes in `k (interval + stop) + delay`, so
    a stretch without failures keeps `exp(-delay / mttf) / expm1((interval + stop) / mttf)`
    checkpoints in the mean, and takes `mttf exp(restart / mttf)` with the restart before it. With
    no delay it is Daly's complete form (ibid., equation 20).
    """
    cycle = (interval + stop) / mttf
    return mttf * exp((restart + delay) / mttf) * expm1(cycle) / interval


def expected_ettr(rate: float, restart: float, interval: float, stop: float = 0.0) -> float:
    """Return the expected ratio of useful to wall time where little is lost (E[ETTR]).

    rate: failures of the whole job per unit of time.
    restart: until steps run again.
    interval: time between checkpoints.
    stop: for which each stops the steps.

    Source: Kokolis et al., arXiv:2410.21680, `(1 - N r (u0 + dt / 2)) / (1 + w / dt)`.
    """
    lost = rate * (restart + interval / 2)
    return max(0.0, 1 - lost) / (1 + stop / interval)
