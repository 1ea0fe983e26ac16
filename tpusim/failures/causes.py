"""Causes of failures: how often a unit of each kind fails, and what it takes until it is back."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from tpusim.base.errors import PlanError, nearest
from tpusim.base.shipped_table import shipped_table
from tpusim.base.shown_value import shown
from tpusim.base.value_checks import MOST_SECONDS, check_range, is_number

Lost = Literal["unit", "link", "process"]
"""What a failure takes: a cube or slice until it is repaired, a link that is routed around where
the chip can, or the processes alone."""

DAY_S = 86_400.0

MOST_RATE = 1e6
"""Failures per unit and day, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A cause of failures.

    name: name in `causes.toml`.
    unit: what fails: `machine`, `chip`, `cable`, `switch`, `slice` or `job`.
    loses: what the run loses by it.
    per_day: failures per unit and day.
    shape: of the Weibull distribution of the times between failures; 1 is exponential. Below 1
        failures cluster, above 1 they come at more regular intervals.
    repair_s: mean seconds until the unit is back; they are exponentially distributed.
    detection_s: seconds until the run knows of the failure.
    hang_share: share of the failures that give no error.
    hang_s: seconds until such a failure is known: a time limit.
    notice_s: seconds of notice, in which a checkpoint is written if it can be.
    sources: source of each number, by its name.
    """

    name: str
    unit: str
    loses: Lost
    per_day: float
    shape: float = 1.0
    repair_s: float
    detection_s: float
    hang_share: float
    hang_s: float
    notice_s: float = 0.0
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def changed(self, where: str, keys: object) -> "Cause":
        """Return the cause with a user's numbers. Raise PlanError for what it does not have.

        keys: a rate per day, or a table of numbers by key.
        """
        if is_number(keys):
            keys = {"per_day": keys}
        if not isinstance(keys, Mapping):
            raise PlanError(
                f"{where} is {shown(keys)}; write failures per {self.unit} and day, such as "
                f"{self.per_day or 0.001:g}, or a table with per_day"
            )
        for key in keys:
            if key not in NUMBERS:
                raise PlanError(f"{where} has no {key!r}; {nearest(str(key), NUMBERS)}")
        for key, value in keys.items():
            check_range(f"{where}.{key}", value, *_LIMITS.get(key, (0.0, MOST_SECONDS)))
        checked: dict[str, Any] = {key: float(value) for key, value in keys.items()}
        given = dict.fromkeys(checked, "given")
        return replace(self, **checked, sources={**self.sources, **given})

    @property
    def availability(self) -> float:
        """The fraction of the time in which a unit is in service."""
        return self.availability_with(self.repair_s)

    def availability_with(self, repair_s: float) -> float:
        """Return the availability with another repair time."""
        return 1 / (1 + self.per_day * repair_s / DAY_S)

    def repair_of(self, availability: float) -> float:
        """Return the repair time, in seconds, at which a unit has an availability above 0."""
        return (1 - availability) / availability / self.per_day * DAY_S


NUMBERS = tuple(
    each.name for each in fields(Cause) if each.name not in ("name", "unit", "loses", "sources")
)
"""Keys of a cause that a user may write."""


def _read_causes() -> Mapping[str, Cause]:
    """Return the causes of `causes.toml`; numbers that one lacks are those of a machine."""
    tables = shipped_table("failures", "causes.toml")
    return {name: _cause(name, {**tables["machine"], **table}) for name, table in tables.items()}


def _cause(name: str, table: Mapping[str, Any]) -> Cause:
    found = {key: each for key, each in table.items() if isinstance(each, Mapping)}
    numbers = {key: each["value"] for key, each in found.items()}
    sources = {key: f"{each['kind']}: {each['source']}" for key, each in found.items()}
    return Cause(name=name, unit=table["unit"], loses=table["loses"], **numbers, sources=sources)


_LIMITS: Mapping[str, tuple[float, float]] = {
    "per_day": (0.0, MOST_RATE),
    "shape": (0.2, 10.0),
    "hang_share": (0.0, 1.0),
}

CAUSES = _read_causes()
"""Each cause by its name."""
