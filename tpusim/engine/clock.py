"""The engine's integer units, and the one place where floats become integers.

Time is in picoseconds, volume in nanobytes, rates in nanobytes per picosecond (1 nB/ps = 1 kB/s).
Integers make ties exact and sums independent of their order and of absolute time. Seconds and bytes
are rounded up and rates down, so no result is faster than its input says.
"""

from math import ceil, floor, inf

from tpusim.base.errors import PlanError

# A float product or sum may be a few units in the last place above the integer that it means
# (0.1 + 0.2 s is 300000000000.00006 ps); it is lowered by this factor before it is rounded up.
_NOISE = 1 - 2**-50
LONGEST_SECONDS = 1e12
"""Thirty thousand years; what takes longer is a mistake in a rate or a size."""

_PS = 1e12 * _NOISE
_NB = 1e9 * _NOISE


def picoseconds(seconds: float) -> int:
    """Return `seconds` in whole picoseconds, rounded up.

    >>> picoseconds(1e-6), picoseconds(0.1 + 0.2), picoseconds(1e-15)
    (1000000, 300000000000, 1)
    """
    if 0 <= seconds <= LONGEST_SECONDS:
        return ceil(seconds * _PS)
    raise _wrong_time(seconds)


def _wrong_time(seconds: float) -> ValueError:
    if LONGEST_SECONDS < seconds < inf:
        return PlanError(
            f"a single task of the step takes {seconds:.3g} s, and more than {LONGEST_SECONDS:.0e} "
            "s is not simulated; look for a rate of the chip or the slice, or a size of the model "
            "or the plan, that was mistyped"
        )
    return ValueError(f"a time must be finite and at least 0 s, not {seconds!r}")


def nanobytes(volume: float) -> int:
    """Return `volume`, in bytes, in whole nanobytes, rounded up."""
    if not 0 <= volume < inf:
        raise ValueError(f"a volume must be finite and at least 0 B, not {volume!r}")
    return ceil(volume * _NB)


def whole_bytes(size: float) -> int:
    """Return `size`, in bytes, in whole bytes, rounded up."""
    if not 0 <= size < inf:
        raise ValueError(f"a size must be finite and at least 0 B, not {size!r}")
    return ceil(size * _NOISE)


def nanobytes_per_ps(bandwidth: float) -> int:
    """Return `bandwidth`, in B/s, in whole nanobytes per picosecond, rounded down, at least 1.

    Raise ValueError unless it is finite and above 0: over a link without bandwidth no transfer
    would end.
    """
    if not 0 < bandwidth < inf:
        raise ValueError(f"a bandwidth must be finite and above 0 B/s, not {bandwidth!r}")
    return max(1, floor(bandwidth / 1000))
