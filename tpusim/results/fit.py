"""The verdict on a peak of HBM: it fits, it does not, or only the compiler can tell."""

from enum import StrEnum

BORDERLINE = 0.02
"""Fraction of the usable HBM within which a simulated peak decides nothing: 12 of 20 compiled plans
need what was predicted to within 2 %, and 15 to within 2.5 % (experiments/compiled_memory, libtpu
0.0.42.1), and what the compiler does about the last percent (rematerialisation, other orders) is
not simulated."""


class Fit(StrEnum):
    """What a need of HBM means beside what the compiler can use."""

    FITS = "fits"
    BORDERLINE = "borderline"
    TOO_LARGE = "does not fit"


def fit_of(need_bytes: float, usable_bytes: float, tolerance: float = BORDERLINE) -> Fit:
    """Return the verdict on a need of HBM.

    tolerance: how far off the need may be, as a fraction of what is usable; 0 for one that the
        compiler reports.
    """
    if tolerance and abs(need_bytes - usable_bytes) <= tolerance * usable_bytes:
        return Fit.BORDERLINE
    return Fit.FITS if need_bytes <= usable_bytes else Fit.TOO_LARGE
