"""Arithmetic on numbers and arrays alike.

Operators serve both already; functions are chosen here by type, because a NumPy function on two
Python numbers costs twenty times a Python one.
"""

from typing import TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

Number: TypeAlias = float | NDArray[np.float64]
"""A number, or an array with one element a plan."""

_TINY = 1e-300


def round_up(value: Number, multiple: Number) -> Number:
    """Return the least multiple of `multiple` that is not below `value`.

    >>> round_up(4160, 128)
    4224
    """
    return -(-value // multiple) * multiple


@overload
def largest(first: float, second: float) -> float: ...


@overload
def largest(first: Number, second: Number) -> Number: ...


def largest(first: Number, second: Number) -> Number:
    """Return the larger of two, element by element."""
    if isinstance(first, np.ndarray) or isinstance(second, np.ndarray):
        return np.maximum(first, second)
    return first if first >= second else second


def smallest(first: Number, second: Number) -> Number:
    """Return the smaller of two, element by element."""
    if isinstance(first, np.ndarray) or isinstance(second, np.ndarray):
        return np.minimum(first, second)
    return -largest(-first, -second)


def power_sum(first: Number, second: Number, power: float) -> Number:
    """Return `(first^p + second^p)^(1/p)`: the sum at p = 1, the larger of the two as p grows.

    Written about the larger term, so that neither a small time nor a high power underflows.
    """
    high = largest(first, second)
    low = smallest(first, second)
    ratio = low / (high + _TINY)
    return high * (1 + ratio**power) ** (1 / power)
