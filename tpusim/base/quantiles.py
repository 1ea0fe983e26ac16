"""Quantiles of values with counts, exact or from a histogram of geometric buckets."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

QUANTILE_ERROR = 0.001
"""The relative error of the values of buckets, unless another is asked for."""


def weighted_quantiles(
    values: NDArray[np.int64], counts: NDArray[np.int64], shares: Sequence[float]
) -> list[float]:
    """Return quantiles of values, each of which occurs so many times.

    They are those of `numpy.quantile` for the values written out: between two values, by linear
    interpolation. Without values they are NaN.

    values: in any order. shares: from 0 to 1.

    >>> import numpy as np
    >>> weighted_quantiles(np.array([1, 5]), np.array([3, 1]), [0.5, 1.0])
    [1.0, 5.0]
    """
    order = np.argsort(values, kind="stable")
    ends = np.cumsum(counts[order])
    if not len(ends) or not ends[-1]:
        return [float("nan")] * len(shares)
    rank = np.asarray(shares, dtype=float) * float(ends[-1] - 1)
    lower = np.floor(rank).astype(np.int64)
    upper = np.minimum(lower + 1, ends[-1] - 1)
    low, high = (
        values[order][np.searchsorted(ends, each, side="right")].astype(float)
        for each in (lower, upper)
    )
    return [float(each) for each in low + (high - low) * (rank - lower)]


def bucketed(
    values: NDArray[np.int64], counts: NDArray[np.int64], error: float = QUANTILE_ERROR
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return a histogram with geometric buckets: values in ascending order, and their counts.

    Every value stands for those at most `error` of it away (and half a unit, as values are whole),
    and so do its quantiles: DDSketch (Masson et al., VLDB 2019, section 2). A bucket is the values
    `(g^(i-1), g^i]` with `g = (1 + error) / (1 - error)`, and its value `2 g^i / (g + 1)`. Zero is
    a bucket of its own.

    values: not negative. error: between 0 and 1.
    """
    growth = np.log1p(error) - np.log1p(-error)
    place = np.where(values > 0, np.ceil(np.log(np.maximum(values, 1)) / growth), -1)
    places, where = np.unique(place.astype(np.int64), return_inverse=True)
    sums = np.zeros(len(places), dtype=np.int64)
    np.add.at(sums, where, counts)
    middles = np.exp(places * growth) * (1.0 - error)
    return np.where(places < 0, 0, np.rint(middles)).astype(np.int64), sums
