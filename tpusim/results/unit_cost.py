"""What a step costs for what it trains on, at the chip's price."""

from math import floor, log10
from typing import Any, NamedTuple

from tpusim.accuracy import ErrorRange
from tpusim.hardware import Slice


class UnitCost(NamedTuple):
    """Dollars for a number of tokens, examples or steps.

    usd: dollars at the predicted step time.
    range_usd: at the ends of its range, the smaller first; None without one.
    unit: what they are for, such as `million tokens`.
    chip_hour_usd: the price of a chip for an hour.
    """

    usd: float
    range_usd: tuple[float, float] | None
    unit: str
    chip_hour_usd: float

    @classmethod
    def of(
        cls, pod: Slice, seconds: float, unit: str, expected: ErrorRange | None
    ) -> "UnitCost | None":
        """Return what some seconds of a slice cost; None where its chip has no price."""
        rate, price = pod.usd_per_second(), pod.chip.price
        if rate is None or price is None:
            return None
        usd = rate * seconds
        return cls(usd, None if expected is None else expected.of(usd), unit, price)

    def __str__(self) -> str:
        ends = "" if self.range_usd is None else " ({} to {})".format(*map(dollars, self.range_usd))
        price = dollars(self.chip_hour_usd)
        return f"{dollars(self.usd)} per {self.unit}{ends}, at {price} per chip-hour"

    def facts(self) -> dict[str, Any]:
        """Return the cost as plain data."""
        return self._asdict()


def dollars(usd: float) -> str:
    """Return an amount of dollars: with cents, or with two digits where it is less than ten cents.

    >>> dollars(0.4234), dollars(3.2), dollars(1234.5), dollars(0.00001234)
    ('$0.42', '$3.20', '$1,234', '$0.000012')
    """
    if usd >= 100 or usd == 0:
        return f"${usd:,.0f}"
    if usd >= 0.1:
        return f"${usd:.2f}"
    return f"${usd:.{1 - floor(log10(usd))}f}"
