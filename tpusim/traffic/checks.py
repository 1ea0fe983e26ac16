"""Checks of the numbers that describe traffic."""

import math
from numbers import Integral, Real
from typing import Any

from tpusim.base.errors import TrafficError
from tpusim.base.shown_value import shown

MOST_REQUESTS = 50_000_000
"""Requests of one traffic: 1.2 GB of columns."""

MOST_TOKENS = 100_000_000
"""Tokens of a prompt or of an output."""

MOST_USERS = 1_000_000

LAST_PS = 2**63 - 2**32
"""The last time of an arrival, in picoseconds: 106 days in 64 bits."""


def whole(where: str, value: Any, most: int, least: int = 1) -> int:
    """Return a value as an int. Raise TrafficError unless it is a whole number in its range."""
    known = isinstance(value, Integral) and not isinstance(value, bool)
    if not (known and least <= int(value) <= most):
        raise TrafficError(
            f"{where} is {shown(value)}; write a whole number from {least:,} to {most:,}"
        )
    return int(value)


def number(where: str, value: Any, least: float, most: float, instead: str = "") -> float:
    """Return a value as a float. Raise TrafficError unless it is a number in its closed range.

    instead: the end of the sentence: how to write what lies outside of the range.
    """
    known = isinstance(value, Real) and not isinstance(value, bool)
    if not (known and not math.isnan(value) and least <= value <= most):
        said = f"{where} is {shown(value)}; write a number from {least:g} to {most:g}"
        raise TrafficError(f"{said}{instead}")
    return float(value)
