"""Quantities with units: text is parsed to SI floats, and floats are formatted as text.

Each unit has a fixed list of spellings, so that `GB` and `GiB` differ, and `Gb` is refused rather
than guessed. Inside the library there are bytes, seconds, hertz, watts and FLOPs only.
"""

import math
import re
from collections.abc import Iterable, Mapping
from functools import cache

from tpusim.base.errors import UnitError, nearest

JOULES_PER_KWH = 3.6e6

_METRIC = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {
    prefix: 1024.0**power for power, prefix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)
}
_SMALL = {"": 1.0, "m": 1e-3, "u": 1e-6, "µ": 1e-6, "μ": 1e-6, "n": 1e-9, "p": 1e-12}
_PREFIXES: Mapping[str, Mapping[str, float]] = {
    "B": _METRIC | _BINARY,
    "B/s": _METRIC | _BINARY,
    "bit/s": _METRIC,
    "FLOP/s": _METRIC,
    "Hz": {prefix: _METRIC[prefix] for prefix in ("", "k", "M", "G")},
    "s": _SMALL,
    "W": {"m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6},
    "USD/h": {"": 1.0},
}
"""The prefixes that each unit may have, and their factors."""

_COUNT_SCALES = ((1e12, "T"), (1e9, "B"), (1e6, "M"))
"""Sizes of counts, and their letters."""

_UNIT_EXAMPLES = {
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
    """Return the SI value of each spelling that is accepted for `unit`."""
    factors = {prefix + unit: factor for prefix, factor in _PREFIXES[unit].items()}
    if unit == "B/s":
        factors |= {name: value / 8 for name, value in _factors("bit/s").items()}
    return factors


def parse(text: object, unit: str, where: str) -> float:
    """Return the value of a quantity in SI, finite and >= 0.

    text: number and unit, such as `32 GiB`.
    unit: one of B, B/s, FLOP/s, Hz, s, W, USD/h; rates in `bit/s` are accepted for `B/s`.
    where: name of the field, for the message.

    Raise UnitError if the unit is missing or another one, or the number is negative or not finite.

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
    return UnitError(f"{where}: {text!r} {fault}; write for example {_UNIT_EXAMPLES[unit]!r}")


def format_bytes(value: float) -> str:
    """Format bytes with a binary prefix and three digits.

    >>> format_bytes(9.16 * 2**30)
    '9.16 GiB'
    """
    return _scaled(value, 1024.0, ("B", *(f"{prefix}B" for prefix in _BINARY)))


def format_rate(value: float, unit: str) -> str:
    """Format a rate or a plain quantity with a metric prefix and three digits.

    >>> format_rate(275e12, "FLOP/s")
    '275 TFLOP/s'
    """
    return _scaled(value, 1000.0, tuple(prefix + unit for prefix in _METRIC))


def format_seconds(value: float) -> str:
    """Format seconds with three digits, in s, ms, µs, ns or ps.

    >>> format_seconds(3.1e-6)
    '3.1 µs'
    """
    if value == 0 or abs(value) >= 0.9995:
        return _scaled(value, math.inf, ("s",))
    return _scaled(value * 1e12, 1000.0, ("ps", "ns", "µs", "ms"))


def format_count(value: float) -> str:
    """Return a count in three digits.

    >>> format_count(8_030_261_248)
    '8.03B'
    """
    size, letter = next((each for each in _COUNT_SCALES if value >= each[0]), (1, ""))
    digits = 2 if value < 10 * size else 1 if value < 100 * size else 0
    return f"{value / size:.{digits}f}{letter}" if letter else f"{value:g}"


def format_amount(value: float) -> str:
    """Return an amount without a fraction, in at most four significant digits.

    >>> format_amount(6_889_257.3), format_amount(1234.5)
    ('6,889,000', '1,234')
    """
    return f"{float(f'{value:.4g}'):,.0f}"


def format_dollars(usd: float) -> str:
    """Return an amount of dollars: with cents, or with two digits where it is less than ten cents.

    >>> format_dollars(0.4234), format_dollars(3.2), format_dollars(1234.5), format_dollars(1.2e-5)
    ('$0.42', '$3.20', '$1,234', '$0.000012')
    """
    if usd >= 100 or usd == 0:
        return f"${format_amount(usd)}"
    if usd >= 0.1:
        return f"${usd:.2f}"
    return f"${usd:.{1 - math.floor(math.log10(usd))}f}"


def format_mesh(mesh: Mapping[str, int], axes: Iterable[str] | None = None) -> str:
    """Return axes of a mesh with their sizes, all of them by default.

    >>> format_mesh({"fsdp": 8, "tensor": 4})
    'fsdp=8 x tensor=4'
    """
    return " x ".join(f"{axis}={mesh[axis]}" for axis in (mesh if axes is None else axes))


def _scaled(value: float, base: float, units: tuple[str, ...]) -> str:
    """Format three digits with the largest unit that leaves one before the point."""
    power = 0
    while power < len(units) - 1 and abs(float(_digits(value))) >= base:
        value /= base
        power += 1
    return f"{_digits(value)} {units[power]}"


def _digits(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:.0f}"
