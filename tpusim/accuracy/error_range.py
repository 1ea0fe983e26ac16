"""The range in which the measured time of a run is expected, as factors of the predicted one."""

from dataclasses import dataclass

COVERAGE = 0.8
"""The fraction of runs whose measured time is in their range."""


@dataclass(frozen=True, slots=True)
class ErrorRange:
    """An interval of measured over predicted time that holds 80 % of the runs like this one.

    It need not hold 1: where the runs like this one were all slower than predicted, so is it.

    low, high: ends, as factors of the predicted step time.
    support: families of measured runs like this one; a family whose nearest run has all its
        features counts one.
    measured: False if nothing like it was measured: no run on its chip, or so few like it that the
        range is mostly that of all runs.
    """

    low: float
    high: float
    support: float
    measured: bool

    @property
    def half_width(self) -> float:
        """Half of the distance between the ends, as a fraction of the predicted time."""
        return (self.high - self.low) / 2

    @property
    def runs(self) -> str:
        """The runs whose measured time is in the range, in words."""
        which = "runs like this" if self.measured else "runs; nothing like it was measured"
        return f"8 of 10 {which}"

    def of(self, step_s: float) -> tuple[float, float]:
        """Return the ends for a predicted step time, in seconds."""
        return self.low * step_s, self.high * step_s

    def of_rate(self, rate: float) -> tuple[float, float]:
        """Return the ends for a predicted rate, such as the MFU, the smaller first."""
        return rate / self.high, rate / self.low
