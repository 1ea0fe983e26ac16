"""Quantities at the edge: text with a unit in, SI floats inside, text out again.

Each unit has a fixed list of spellings, so that `GB` and `GiB` differ, `Gb` is refused rather than
guessed, and a gilbert is never meant. Inside the library there are bytes, seconds, hertz, watts and
FLOPs only.
"""

import math
import re
from functools import cache

from quantiphy import Quantity

from tpusim.errors import UnitError, nearest

_METRIC = ("", "k", "M", "G", "T", "P", "E")
_BINARY = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_SMALL = ("", "m", "u", "µ", "μ", "n", "p")
_PREFIXES = {
    "B": _METRIC + _BINARY,
    "B/s": _METRIC + _BINARY,
    "bit/s": _METRIC,
    "FLOP/s": _METRIC,
    "Hz": _METRIC[:4],
    "s": _SMALL,
    "W": ("m", "", "k", "M"),
    "USD/h": ("",),
}
_EXAMPLES = {
    "B": "32 GiB",
    "B/s": "1.2 TB/s",
    "FLOP/s": "275 TFLOP/s",
    "Hz": "1.05 GHz",
    "s": "3 us",
    "W": "192 W",
    "USD/h": "3.22 USD/h",
}
_TEXT = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:inf|nan))\s*(\S*)\s*")


@cache
def _factors(unit: str) -> dict[str, float]:
    """SI value of one of each spelling that is accepted where `unit` is wanted."""
    spellings = [prefix + unit for prefix in _PREFIXES[unit]]
    factors = {name: float(Quantity(f"1 {name}", binary=True)) for name in spellings}
    if unit == "B/s":
        factors |= {name: value / 8 for name, value in _factors("bit/s").items()}
    return factors


def parse(text: object, unit: str, where: str) -> float:
    """The value of `text` in `unit` (one of B, B/s, FLOP/s, Hz, s, W, USD/h), finite and >= 0.

    `where` names the field in the message. Rates in `bit/s` are accepted where `B/s` is wanted.

    Raises `UnitError` when the unit is missing or another one, or the number is not finite or
    negative.

    >>> parse("32 GiB", "B", "hbm_bytes")
    34359738368.0
    >>> parse("400 Gbit/s", "B/s", "dcn_bandwidth")
    50000000000.0
    """
    found = _TEXT.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise _error(where, text, "is not a number followed by a unit", unit)
    factors = _factors(unit)
    number, spelling = float(found[1]), found[2]
    if not spelling:
        raise _error(where, text, "has no unit", unit)
    if spelling not in factors:
        raise _error(where, text, f"has the unit {spelling!r} ({nearest(spelling, factors)})", unit)
    value = number * factors[spelling]
    if not math.isfinite(value):
        raise _error(where, text, "is not finite", unit)
    if value < 0:
        raise _error(where, text, "is negative", unit)
    return value


def _error(where: str, text: object, fault: str, unit: str) -> UnitError:
    return UnitError(f"{where}: {text!r} {fault}; write for example {_EXAMPLES[unit]!r}")


def format_bytes(value: float) -> str:
    """Bytes with a binary prefix and three digits.

    >>> format_bytes(9.16 * 2**30)
    '9.16 GiB'
    """
    return _scaled(value, 1024.0, ("B", *(f"{prefix}B" for prefix in _BINARY)))


def format_rate(value: float, unit: str) -> str:
    """A rate or a plain quantity with a metric prefix and three digits.

    >>> format_rate(275e12, "FLOP/s")
    '275 TFLOP/s'
    """
    return _scaled(value, 1000.0, tuple(prefix + unit for prefix in _METRIC))


def format_seconds(value: float) -> str:
    """Seconds with three digits, in s, ms, µs, ns or ps.

    >>> format_seconds(3.1e-6)
    '3.1 µs'
    """
    if value == 0 or abs(value) >= 0.9995:
        return _scaled(value, math.inf, ("s",))
    return _scaled(value * 1e12, 1000.0, ("ps", "ns", "µs", "ms"))


def _scaled(value: float, base: float, units: tuple[str, ...]) -> str:
    """Three digits and the largest unit that leaves at least one before the point."""
    power = 0
    while power < len(units) - 1 and abs(float(_digits(value))) >= base:
        value /= base
        power += 1
    return f"{_digits(value)} {units[power]}"


def _digits(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:.0f}"
