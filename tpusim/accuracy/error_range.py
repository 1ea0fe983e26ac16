"""The range in which the measured time of a run is expected, as factors of the predicted one."""

from dataclasses import dataclass

from tpusim.base.units import format_seconds

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

    def words(self, step_s: float, also: str = "") -> str:
        """Return the range of a predicted step time, in seconds, and what it means, in words.

        also: what is said after the ends, such as those of the MFU.
        """
        low, high = map(format_seconds, self.of(step_s))
        ends = f"{low} to {high}{also}"
        if self.measured:
            return f"{ends} in 8 of 10 runs like this"
        return f"nothing like it was measured: {ends} by the errors of other runs"

    def of(self, step_s: float) -> tuple[float, float]:
        """Return the ends for a predicted step time, in seconds."""
        return self.low * step_s, self.high * step_s

    def of_rate(self, rate: float) -> tuple[float, float]:
        """Return the ends for a predicted rate, such as the MFU, the smaller first."""
        return rate / self.high, rate / self.low
