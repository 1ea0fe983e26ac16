"""What a run file says of failures of a server: the loss of one replica, and targets."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import PlanError
from tpusim.base.value_checks import check_from_zero
from tpusim.failures import CAUSES, failures_per_second, units_of
from tpusim.failures.causes import DAY_S
from tpusim.hardware import Slice

COLD_START_S = 840.0
"""Seconds of a cold start where a server has none of its own: Gemma 4 31B on v6e-4 takes 13 to 15
minutes, and 40 s with a warm compile cache; servers on 7x 5 to 7 minutes; Kimi K2.6 57 minutes, and
6 with a cache (published recipes)."""

TARGET_KEYS = {"ttft_s": "ttft", "tpot_s": "tpot"}
"""The keys of targets, and the times of requests that they limit."""


@checked_call
@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFailures:
    """The loss of one replica, which returns after a cold start.

    cold_start_s: seconds until it serves again; `serving.ready_s`, or 840. Its cache is empty.
    at_s: when it is lost, in seconds after the first request. None lets it return in time.
    mtbf_s: mean seconds between failures of a replica. None for those of machines and cables.
    spares: idle replicas, of which one takes over at once.
    ttft_s, tpot_s: the longest TTFT and TPOT that meet the targets.
    share: of the requests that have to meet them.
    """

    cold_start_s: float | None = None
    at_s: float | None = None
    mtbf_s: float | None = None
    spares: int = 0
    ttft_s: float | None = None
    tpot_s: float | None = None
    share: float = 0.99

    def __post_init__(self) -> None:
        for each in fields(self):
            if (value := getattr(self, each.name)) is not None:
                check_from_zero(f"failures.{each.name}", value)
        for key in ("mtbf_s", *TARGET_KEYS):
            if getattr(self, key) == 0:
                raise PlanError(f"failures.{key} is 0; write seconds above 0, or leave it out")
        if not 0 < self.share <= 1:
            raise PlanError(
                f"failures.share is {self.share:g}; write the fraction of the requests that meet "
                "the targets, more than 0 and at most 1"
            )

    @property
    def targets(self) -> Mapping[str, float]:
        """The most seconds of each time of a request that has a target."""
        found = {name: getattr(self, key) for key, name in TARGET_KEYS.items()}
        return {name: most for name, most in found.items() if most is not None}

    def check_spares(self, replicas: int) -> None:
        """Raise PlanError for more spares than there are replicas to replace."""
        if self.spares > replicas:
            raise PlanError(
                f"failures.spares is {self.spares}, and serving.replicas {replicas}: more spares "
                f"than replicas replace nothing; write at most {replicas}, or more replicas"
            )

    def mean_time(self, pod: Slice) -> float:
        """Return the mean seconds between two failures of a replica on a slice."""
        return DAY_S / failures_per_day(pod) if self.mtbf_s is None else self.mtbf_s


def failures_per_day(pod: Slice) -> float:
    """Return the failures of the machines of a slice, and of the cables between them, in a day."""
    units = units_of(pod)
    return sum(failures_per_second(CAUSES[name], units) * DAY_S for name in ("machine", "cable"))
