"""The causes of failures: rates and repair times, as `causes.toml` has them."""

from dataclasses import dataclass

from tpusim.base.shipped_table import shipped_table

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Cause:
    """A kind of part that fails.

    name: of the entry.
    per: the part whose failures are counted.
    per_day: failures of one part in a day.
    repair_s: mean seconds from a failure until the part is in service again.
    kind, source: of the rate, as in the chips' files.
    """

    name: str
    per: str
    per_day: float
    repair_s: float
    kind: str
    source: str

    @property
    def availability(self) -> float:
        """The fraction of the time in which a part is in service."""
        return self.availability_with(self.repair_s)

    def availability_with(self, repair_s: float) -> float:
        """Return the availability with another repair time."""
        return 1 / (1 + self.per_day * repair_s / DAY_S)

    def repair_of(self, availability: float) -> float:
        """Return the repair time, in seconds, at which a part has an availability above 0."""
        return (1 - availability) / availability / self.per_day * DAY_S


def _read_causes() -> dict[str, Cause]:
    rows = shipped_table("failures", "causes.toml")
    return {name: Cause(**{"name": name, "per": name} | row) for name, row in rows.items()}


CAUSES = _read_causes()
"""Each cause by its name."""
