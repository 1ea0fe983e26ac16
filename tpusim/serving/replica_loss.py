"""The loss of a replica: requests through the outage, beside the same server without it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import PlanError
from tpusim.base.text_entry import entry
from tpusim.base.text_table import fixed_table
from tpusim.base.units import format_seconds
from tpusim.base.value_checks import check_from_zero
from tpusim.engine.clock import picoseconds
from tpusim.failures import CAUSES, failures_per_second, units_of
from tpusim.failures.causes import DAY_S
from tpusim.hardware import Slice
from tpusim.server import Outage, Served
from tpusim.serving.metrics import OF_REQUESTS, PICO, TIMES, Distribution, answered, goodput, some

Serve: TypeAlias = Callable[[int, Sequence[Outage]], Served]
"""Serves the requests with so many replicas and these outages."""

COLD_START_S = 840.0
"""Seconds of a cold start where a server has none of its own: Gemma 4 31B on v6e-4 takes 13 to 15
minutes, and 40 s with a warm compile cache; servers on 7x 5 to 7 minutes; Kimi K2.6 57 minutes, and
6 with a cache (published recipes)."""

TARGET_KEYS = {"ttft_s": "ttft", "tpot_s": "tpot"}
"""The keys of targets, and the times of requests that they limit."""

FOREVER_PS = 2**61
LEAST_DELAY = 1.1
"""A request is delayed if it takes this many times as long as without the loss."""

MOST_MORE = 8
"""Replicas beyond those of the run that are tried."""

SHOWN = ("ttft", "tpot", "queue")
LOST = 0
"""The replica that is lost."""


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


class Queue(NamedTuple):
    """Requests that wait for their first step, or for another one after their replica was lost.

    times_ps: when their number changes, in order.
    waiting: the number from then on.
    """

    times_ps: NDArray[np.int64]
    waiting: NDArray[np.int64]

    @classmethod
    def of(cls, served: Served, lost_ps: int = 0) -> "Queue":
        """Return the queue of a server. lost_ps: when a replica was lost."""
        again = served.resumed_ps[served.resumed_ps >= 0]
        begin = (served.arrival_ps, np.full(len(again), lost_ps, np.int64))
        end = (served.scheduled_ps, again)
        times = np.concatenate([*begin, *end])
        steps = np.repeat([1, -1], len(served.arrival_ps) + len(again))
        order = np.lexsort((steps, times))
        return cls(times[order], np.cumsum(steps[order]))

    def peak(self, until_ps: int = FOREVER_PS) -> int:
        """Return the most requests that wait before a time."""
        return int(self.waiting[self.times_ps < until_ps].max(initial=0))

    def drained_ps(self, from_ps: int, most: int) -> int:
        """Return when, from a time on, no more than `most` requests wait for the first time."""
        at = int(np.searchsorted(self.times_ps, from_ps, side="right"))
        if at == 0 or self.waiting[at - 1] <= most:
            return from_ps
        few = np.flatnonzero(self.waiting[at:] <= most)
        return int(self.times_ps[at + few[0]])


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLoss:
    """What the loss of one of several replicas does to requests.

    failures: the loss and the targets.
    replicas: that serve, without spares.
    lost_ps, back_ps: when one is lost, and when it, or a spare, serves again.
    mtbf_s: mean seconds between two failures of a replica.
    served, calm: the answered requests with the loss and without it.
    needed, needed_with_loss: the fewest replicas that meet the targets without a loss, and with
        one; None without targets, or where too many would be needed.
    """

    failures: ServerFailures
    replicas: int
    lost_ps: int
    back_ps: int
    mtbf_s: float
    served: Served
    calm: Served
    needed: int | None = None
    needed_with_loss: int | None = None

    @property
    def queue(self) -> Queue:
        """The queue with the loss."""
        return Queue.of(self.served, self.lost_ps)

    @property
    def drained_ps(self) -> int:
        """When, after the return, no more requests wait than did before the loss at most."""
        return self.queue.drained_ps(self.back_ps, self.queue.peak(self.lost_ps))

    @property
    def retried(self) -> int:
        """Requests that had begun on the replica, and begin again."""
        return int((self.served.resumed_ps >= 0).sum())

    @property
    def delayed(self) -> NDArray[np.bool_]:
        """Which requests take 10 % longer than without the loss, or more."""
        took = OF_REQUESTS["e2e"](self.served)
        return np.asarray(took > LEAST_DELAY * OF_REQUESTS["e2e"](self.calm))

    @property
    def met(self) -> tuple[float, float]:
        """The fraction of the requests that meet the targets, with the loss and without it.

        Without targets, a request that is not delayed meets them.
        """
        if not (targets := self.failures.targets):
            return 1 - float(self.delayed.mean()), 1.0
        return goodput(self.served, targets).share, goodput(self.calm, targets).share

    @property
    def availability(self) -> float:
        """The fraction of the requests that meet the targets in the long run.

        Those that miss them because of a loss come once for each failure of a replica.
        """
        met, calm = self.met
        span = float(np.ptp(self.calm.arrival_ps)) * PICO
        return max(0.0, calm - max(0.0, calm - met) * span * self.replicas / self.mtbf_s)

    def through(self, key: str) -> tuple[Distribution, Distribution]:
        """Return a time of the requests sent from the loss until the queue is drained.

        key: of `OF_REQUESTS`. Return it with the loss and without it.
        """
        sent, end = self.served.arrival_ps, max(self.drained_ps, self.lost_ps + 1)
        rows = (sent >= self.lost_ps) & (sent < end)
        found = [OF_REQUESTS[key](some(each, rows)) for each in (self.served, self.calm)]
        return Distribution.of(found[0]), Distribution.of(found[1])

    def facts(self) -> dict[str, Any]:
        """Return the loss as plain data, in seconds, fractions and requests."""
        with_loss, without = self.met
        return {
            "lost_s": self.lost_ps * PICO,
            "back_s": self.back_ps * PICO,
            "drain_s": (self.drained_ps - self.back_ps) * PICO,
            "queue_peak": self.queue.peak(),
            "queue_peak_without": Queue.of(self.calm).peak(),
            "retried": self.retried,
            "delayed": int(self.delayed.sum()),
            "met": with_loss,
            "met_without": without,
            "availability": self.availability,
            "mtbf_s": self.mtbf_s,
            "replicas_needed": self.needed,
            "replicas_needed_with_loss": self.needed_with_loss,
            **{
                f"{key}_s": {"with": found[0]._asdict(), "without": found[1]._asdict()}
                for key in SHOWN
                for found in [self.through(key)]
            },
        }

    def lines(self) -> Iterator[str]:
        """Yield the loss as lines of a report."""
        yield from entry("loss", self._loss())
        yield from fixed_table(list(self._rows()), (12, *[11] * 4))
        yield from entry("queue", self._queue())
        count = int(self.delayed.sum())
        yield from entry(
            "requests", f"{self.retried:,} begin again, {count:,} take 10% longer or more"
        )
        yield from entry("targets", self._met())
        if self.failures.targets:
            yield from entry("replicas", self._needed())

    def _loss(self) -> str:
        times = f"from {_seconds(self.lost_ps)} to {_seconds(self.back_ps)}"
        if self.failures.spares:
            return f"a spare takes over from one of {self.replicas} at {_seconds(self.lost_ps)}"
        if self.replicas == 1:
            return f"the only replica is down {times}"
        load = self.replicas / (self.replicas - 1)
        return f"one of {self.replicas} replicas is down {times}: the others take {load:.3g} x load"

    def _rows(self) -> Iterator[tuple[str, ...]]:
        yield "outage", "p50", "without", "p99", "without"
        for key in SHOWN:
            lost, calm = self.through(key)
            cells = (lost.p50, calm.p50, lost.p99, calm.p99)
            shown = ("-" if each != each else format_seconds(each) for each in cells)
            yield f"  {TIMES[key].title}", *shown

    def _queue(self) -> str:
        peak, before = self.queue.peak(), Queue.of(self.calm).peak()
        drain = format_seconds((self.drained_ps - self.back_ps) * PICO)
        return f"{peak:,} wait at most ({before:,} without); drained {drain} after the return"

    def _met(self) -> str:
        with_loss, without = self.met
        named = [f"{TIMES[key].title} {most:g} s" for key, most in self.failures.targets.items()]
        what = f"meet {' and '.join(named)}" if named else "are not delayed"
        days = self.mtbf_s / self.replicas / DAY_S
        return (
            f"{with_loss:.2%} {what} ({without:.2%} without); {self.availability:.4%} in the long "
            f"run, with a loss every {days:.3g} days"
        )

    def _needed(self) -> str:
        share = f"{100 * self.failures.share:.4g}% of the requests"
        if self.needed is None:
            return f"{self.replicas + MOST_MORE} do not meet the targets for {share}"
        if self.needed_with_loss is None:
            return f"{self.needed} meet the targets for {share}, none that were tried with one lost"
        spares = self.needed_with_loss - self.needed
        return (
            f"{self.needed} meet the targets for {share}, {self.needed_with_loss} with one lost: "
            f"{spares} spare{'s' * (spares != 1)}"
        )


def lose_replica(
    failures: ServerFailures, run: Serve, pod: Slice, *, replicas: int, ready_s: float = 0.0
) -> tuple[Served, ReplicaLoss]:
    """Return the requests of a server that loses a replica, and what the loss does to them.

    run: serves the requests.
    pod: the slice of a replica.
    ready_s: the server's own cold start.

    Raise PlanError for more spares than replicas, and a loss that ends after the last arrival.
    """
    failures.check_spares(replicas)
    run = cache(run)
    calm = answered(run(replicas, ()))
    lost, cold = _outage(failures, calm, ready_s)
    spare = min(1, failures.spares)
    served = run(replicas + spare, _outages(lost, cold, replicas if spare else 0))
    loss = ReplicaLoss(
        failures=failures,
        replicas=replicas,
        lost_ps=lost,
        back_ps=lost + (0 if spare else cold),
        mtbf_s=failures.mean_time(pod),
        served=answered(served),
        calm=calm,
    )
    if not failures.targets:
        return served, loss

    def meets(count: int, outages: Sequence[Outage]) -> bool:
        return goodput(run(count, outages), failures.targets).share >= failures.share

    most = replicas + MOST_MORE
    needed = _fewest(lambda count: meets(count, ()), replicas, most)
    if needed is None:
        return served, loss
    outages = _outages(lost, cold)
    enough = (count for count in range(needed, most + 1) if meets(count, outages))
    return served, replace(loss, needed=needed, needed_with_loss=next(enough, None))


def _outage(failures: ServerFailures, calm: Served, ready_s: float) -> tuple[int, int]:
    """Return when the replica is lost, and how long its cold start lasts, in picoseconds."""
    if not len(calm.arrival_ps):
        raise PlanError("no request is answered, so none can lose its replica; raise max_model_len")
    first, last = int(calm.arrival_ps.min()), int(calm.arrival_ps.max())
    cold_s = failures.cold_start_s
    if cold_s is None:
        cold_s = ready_s or COLD_START_S
    cold, span = picoseconds(cold_s), last - first
    at = (span - cold) // 3 if failures.at_s is None else picoseconds(failures.at_s)
    if at < 0 or at + cold > span:
        begin = "" if failures.at_s is None else f" from {failures.at_s:g} s on"
        raise PlanError(
            f"failures.cold_start_s is {cold_s:g}{begin}, and requests arrive for "
            f"{span * PICO:.4g} s: nobody would see the replica return; write more requests, or a "
            "shorter cold start, such as 40 with a warm compile cache"
        )
    return first + at, cold


def _outages(lost: int, cold: int, spare: int = 0) -> tuple[Outage, ...]:
    """Return the outage of a replica; `spare` is the number of one that takes over, if any."""
    if spare:
        return Outage(LOST, lost, FOREVER_PS), Outage(spare, 0, lost)
    return (Outage(LOST, lost, lost + cold),)


def _fewest(meets: Callable[[int], bool], start: int, most: int) -> int | None:
    """Return the fewest replicas that meet targets, from a first guess; None above `most`."""
    if not meets(start):
        return next((count for count in range(start + 1, most + 1) if meets(count)), None)
    while start > 1 and meets(start - 1):
        start -= 1
    return start


def _seconds(ps: int) -> str:
    return format_seconds(ps * PICO)
