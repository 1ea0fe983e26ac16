"""Parts that are up or down independently of each other."""

from math import exp, lgamma, log, log1p


def at_least(needed: int, pool: int, up: float) -> float:
    """Return the probability that at least `needed` of `pool` parts are up.

    up: the probability that one is.

    >>> round(at_least(2, 3, 0.9), 3)
    0.972
    """
    if needed <= 0 or up >= 1:
        return float(needed <= pool)
    if up <= 0:
        return 0.0
    return min(1.0, sum(_exactly(count, pool, up) for count in range(needed, pool + 1)))


def mean_groups(size: int, pool: int, up: float) -> float:
    """Return the mean number of groups of `size` parts that the parts which are up make."""
    return sum(at_least(parts, pool, up) for parts in range(size, pool + 1, size))


def _exactly(count: int, pool: int, up: float) -> float:
    """Return the probability that `count` of `pool` parts are up, with 0 < up < 1."""
    ways = lgamma(pool + 1) - lgamma(count + 1) - lgamma(pool - count + 1)
    return exp(ways + count * log(up) + (pool - count) * log1p(-up))
