"""Stragglers of a training run: slow chips that come and go, host pauses, uneven slices."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from math import expm1, log1p
from typing import Any

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import PlanError, nearest
from tpusim.base.html_text import html_fields
from tpusim.base.shown_value import shown
from tpusim.base.value_checks import (
    check_count,
    check_flag,
    check_positive,
    check_range,
    is_list,
    is_number,
    seconds,
)

DAY_S, HOUR_S = 86400.0, 3600.0
MOST_RATE = 1e9
MOST_RUNS, MOST_SEED = 10_000, 2**63 - 1
MOST_SLOWDOWN = 1e6

EXAMPLES = {
    "chips": "{ per_day = 0.01, compute = 0.8 }",
    "pauses": "{ per_hour = 2, seconds = 0.5 }",
    "slices": "{ spread = 0.02 }",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowChips:
    """Chips that are slow for a while.

    per_day: times that a chip becomes slow, per chip and day.
    time_share: share of the time in which at least one chip is slow, in place of `per_day`.
    duration_s: mean seconds for which it stays slow, exponentially distributed.
    compute, hbm: share of its speed that is left, above 0 and up to 1.
    slowdown: time of a step with a slow chip over that of one without; by default as simulated.
    """

    per_day: float | None = None
    time_share: float | None = None
    duration_s: float = HOUR_S
    compute: float = 1.0
    hbm: float = 1.0
    slowdown: float | None = None

    def __post_init__(self) -> None:
        where = "stragglers.chips"
        if (self.per_day is None) == (self.time_share is None):
            raise PlanError(
                f"{where} needs per_day or time_share, one of the two; write {EXAMPLES['chips']}"
            )
        if self.per_day is not None:
            check_range(f"{where}.per_day", self.per_day, 0, MOST_RATE)
        if self.time_share is not None:
            check_range(f"{where}.time_share", self.time_share, 0, 1)
        if seconds(f"{where}.duration_s", self.duration_s) == 0:
            raise PlanError(f"{where}.duration_s is 0; write seconds above 0")
        for name in ("compute", "hbm"):
            _check_share(f"{where}.{name}", getattr(self, name))
        if self.slowdown is not None:
            check_range(f"{where}.slowdown", self.slowdown, 1, MOST_SLOWDOWN)
        elif self.compute == self.hbm == 1:
            raise PlanError(
                f"{where} are as fast as any other; write the share that is left, as in "
                f"{EXAMPLES['chips']}"
            )

    def mean_slow(self, chips: int) -> float:
        """Return the mean number of slow chips of a machine; infinite where one always is."""
        if self.time_share is not None:
            return -log1p(-self.time_share) if self.time_share < 1 else float("inf")
        assert self.per_day is not None
        return chips * self.per_day / DAY_S * self.duration_s

    def slow_time(self, chips: int) -> float:
        """Return the share of the time in which at least one chip is slow.

        Their number is that of an M/G/infinity queue, so it has a Poisson distribution.
        """
        return -expm1(-self.mean_slow(chips))


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPauses:
    """Pauses of hosts, such as those of a garbage collector.

    per_hour: pauses per host and hour of steps.
    seconds: length of a pause.
    synchronised: all hosts pause at once, as with planned garbage collection.
    lead_s: seconds by which hosts are ahead of the devices, which a pause does not delay; by
        default a step of an asynchronous loop, and 0 of a synchronous one.
    """

    per_hour: float
    seconds: float
    synchronised: bool = False
    lead_s: float | None = None

    def __post_init__(self) -> None:
        where = "stragglers.pauses"
        check_range(f"{where}.per_hour", self.per_hour, 0, MOST_RATE)
        seconds(f"{where}.seconds", self.seconds)
        check_flag(f"{where}.synchronised", self.synchronised)
        if self.lead_s is not None:
            seconds(f"{where}.lead_s", self.lead_s)
        if self.per_hour * self.seconds > HOUR_S:
            raise PlanError(
                f"{where}.seconds is {self.seconds:g}, longer than the "
                f"{HOUR_S / self.per_hour:.3g} s between two pauses of a host; write a shorter "
                "pause or a lower per_hour"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class UnevenSlices:
    """Slices that differ in speed, for the whole run.

    spread: standard deviation over mean of their speeds, which are normally distributed.
    shares: the speed of each slice over that of the simulated step, in place of `spread`.
    """

    spread: float | None = None
    shares: Sequence[float] | None = None

    def __post_init__(self) -> None:
        where = "stragglers.slices"
        if (self.spread is None) == (self.shares is None):
            raise PlanError(
                f"{where} needs spread or shares, one of the two; write {EXAMPLES['slices']}"
            )
        if self.spread is not None:
            check_range(f"{where}.spread", self.spread, 0, 0.5)
        if self.shares is not None:
            if not is_list(self.shares) or not self.shares:
                raise PlanError(
                    f"{where}.shares is {shown(self.shares)}; write a share for each slice, such "
                    "as [1.0, 0.95]"
                )
            for number, share in enumerate(self.shares):
                _check_share(f"{where}.shares[{number}]", share)
            object.__setattr__(self, "shares", tuple(map(float, self.shares)))


_PARTS: Mapping[str, type] = {"chips": SlowChips, "pauses": HostPauses, "slices": UnevenSlices}


@checked_call
@dataclass(frozen=True, slots=True, kw_only=True)
class Stragglers:
    """What makes steps of a training run wait for a part of the machine.

    chips: chips that are slow for a while; `SlowChips` or its table.
    pauses: pauses of hosts; `HostPauses` or its table.
    slices: slices that differ in speed; `UnevenSlices` or its table.
    runs: random runs that are simulated.
    seed: of their random numbers.
    """

    chips: SlowChips | None = None
    pauses: HostPauses | None = None
    slices: UnevenSlices | None = None
    runs: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        for name, kind in _PARTS.items():
            object.__setattr__(self, name, _part(name, getattr(self, name), kind))
        check_positive("stragglers.runs", self.runs)
        for name, most in (("runs", MOST_RUNS), ("seed", MOST_SEED)):
            check_count(f"stragglers.{name}", getattr(self, name), 0, most)

    @property
    def causes(self) -> tuple[str, ...]:
        """The parts that are given, by their keys."""
        return tuple(name for name in _PARTS if getattr(self, name) is not None)

    def without(self, cause: str) -> "Stragglers":
        """Return the stragglers with one cause mended, by its key."""
        left: dict[str, Any] = {name: getattr(self, name) for name in self.causes if name != cause}
        return Stragglers(**left, runs=self.runs, seed=self.seed)

    @property
    def written(self) -> dict[str, dict[str, Any]]:
        """The causes as tables of a run file, without defaults."""
        return {name: _written(getattr(self, name)) for name in self.causes}

    def _repr_html_(self) -> str:
        """Return what is given, for a notebook."""
        return html_fields("Stragglers", self)


def _written(part: Any) -> dict[str, Any]:
    found = {each.name: getattr(part, each.name) for each in fields(part)}
    plain = {each.name: each.default for each in fields(part)}
    return {name: value for name, value in found.items() if value != plain[name]}


def _part(name: str, value: Any, kind: type) -> Any:
    """Return a cause, of itself or of its table. Raise PlanError for anything else."""
    if value is None or isinstance(value, kind):
        return value
    where = f"stragglers.{name}"
    if not isinstance(value, Mapping):
        raise PlanError(f"{where} is {shown(value)}; write a table, such as {EXAMPLES[name]}")
    known = {each.name: each.default is MISSING for each in fields(kind)}
    for key in value:
        if key not in known:
            raise PlanError(f"{where} has no {key!r}; {nearest(str(key), known)}")
    for key, needed in known.items():
        if needed and key not in value:
            raise PlanError(f"{where} has no {key!r}; write {EXAMPLES[name]}")
    return kind(**value)


def _check_share(where: str, value: Any) -> None:
    if not is_number(value) or not 0 < value <= 1:
        raise PlanError(
            f"{where} is {shown(value)}; write the share that is left, from above 0 to 1"
        )
