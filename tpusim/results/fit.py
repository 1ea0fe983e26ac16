"""The verdict on a peak of HBM: it fits, it does not, or only the compiler can tell."""

from enum import StrEnum

SURE = 0.95
"""The fraction of plans like it from which on a plan fits; it does not fit if as many do not."""

BORDERLINE = 0.02
"""Fraction of the usable HBM within which the peak of a schedule decides nothing, where the
compiler has not said what it needs: of 112 replayed programs, 110 need what it says within 2 %."""


class Fit(StrEnum):
    """What a need of HBM means beside what the compiler can use."""

    FITS = "fits"
    BORDERLINE = "borderline"
    TOO_LARGE = "does not fit"

    @property
    def order(self) -> int:
        """The place among the verdicts, the surest to fit first."""
        return list(Fit).index(self)


def fit_of_odds(odds: float, need_bytes: float, usable_bytes: float) -> Fit:
    """Return the verdict on a plan.

    odds: the fraction of plans like it that fit. Whatever they are, a plan that needs more than
        there is does not fit for sure, and one that needs no more may fit.
    """
    enough = need_bytes <= usable_bytes
    if odds >= SURE and enough:
        return Fit.FITS
    return Fit.TOO_LARGE if odds <= 1 - SURE and not enough else Fit.BORDERLINE


def fit_of(need_bytes: float, usable_bytes: float, tolerance: float = BORDERLINE) -> Fit:
    """Return the verdict on a need of HBM.

    tolerance: how far off the need may be, as a fraction of what is usable; 0 for one that the
        compiler reports.
    """
    if tolerance and abs(need_bytes - usable_bytes) <= tolerance * usable_bytes:
        return Fit.BORDERLINE
    return Fit.FITS if need_bytes <= usable_bytes else Fit.TOO_LARGE
