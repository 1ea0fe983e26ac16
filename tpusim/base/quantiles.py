"""Quantiles of values that occur several times each."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


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
