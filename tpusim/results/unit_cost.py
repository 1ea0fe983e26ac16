"""What a step costs for what it trains on, at the chip's price."""

from typing import Any, NamedTuple

from tpusim.accuracy import ErrorRange
from tpusim.base.units import format_dollars
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
        ends = (
            ""
            if self.range_usd is None
            else " ({} to {})".format(*map(format_dollars, self.range_usd))
        )
        price = format_dollars(self.chip_hour_usd)
        return f"{format_dollars(self.usd)} per {self.unit}{ends}, at {price} per chip-hour"

    def facts(self) -> dict[str, Any]:
        """Return the cost as plain data."""
        return self._asdict()
