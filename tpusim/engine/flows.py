"""Flows over shared links, at fair rates.

A flow keeps its share until it ends, at the later of `work_ps` after its start and the time at
which its volume has drained; its cap is its volume over `work_ps`, so the two differ only if others
slow it down, or by rounding.

The rates are a function of the steps in flight, so they are computed once for each such set. The
network schedules one wake-up, for the earliest end; when rates change, a later one takes its place
and the overtaken one is recognised by its number.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import count
from typing import TypeAlias

from simpy import Event

from tpusim.engine.instructions import TaskStep
from tpusim.engine.lane_clock import LaneClock


class Flow:
    """The flow phase of one task: `remaining` nanobytes at the time `since`, drained at `rate`."""

    __slots__ = ("due", "earliest", "finish", "rate", "remaining", "since", "started", "step")

    def __init__(
        self, step: TaskStep, started: int, now: int, finish: "Callable[[Flow], object]"
    ) -> None:
        self.step = step
        self.started = started
        self.finish = finish
        self.earliest = now + step.work_ps
        self.remaining = step.volume
        self.since = now
        self.rate = 0
        self.due = 0

    def left(self, now: int) -> int:
        """Return the nanobytes that have not drained by `now`."""
        return max(0, self.remaining - self.rate * (now - self.since))

    def change_rate(self, rate: int, now: int) -> None:
        """Drain at `rate` from `now` on."""
        self.remaining = self.left(now)
        self.since = now
        self.rate = rate
        self.due = max(self.earliest, now - (-self.remaining // rate))


class FlowNetwork:
    """The flows of lanes with one clock; `rates` are the capacities of the links in nB/ps."""

    __slots__ = ("_clock", "_known", "flows", "numbers", "rates", "wake", "wake_due")

    def __init__(self, clock: LaneClock, rates: Sequence[int]) -> None:
        self._clock = clock
        self._known: dict[tuple[TaskStep, ...], list[int]] = {}
        self.rates = rates
        self.flows: list[Flow] = []
        self.numbers = count()
        self.wake = -1
        self.wake_due = -1

    def start(self, flow: Flow) -> None:
        """Put `flow` on its links; `flow.finish` is called with it when it ends."""
        self.flows.append(flow)
        self._share(self._clock.now)

    def _share(self, now: int) -> None:
        flows = self.flows
        if not flows:
            return
        for flow, rate in zip(flows, self._fair_rates(), strict=True):
            if flow.rate != rate:
                flow.change_rate(rate, now)
        due = min([flow.due for flow in flows])
        if due != self.wake_due:
            self.wake_due = due
            self.wake = next(self.numbers)
            self._clock.call_after(due - now, self.wake, self._wake_up)

    def _fair_rates(self) -> list[int]:
        if len(self.flows) == 1:
            return [self.flows[0].step.cap]
        steps = tuple([flow.step for flow in self.flows])
        rates = self._known.get(steps)
        if rates is None:
            rates = self._known[steps] = fair_rates(steps, self.rates)
        return rates

    def _wake_up(self, event: Event) -> None:
        if event.value != self.wake:
            return
        now = self._clock.now
        self.wake = self.wake_due = -1
        ended = [flow for flow in self.flows if flow.due <= now]
        self.flows = [flow for flow in self.flows if flow.due > now]
        self._share(now)
        for flow in ended:
            flow.finish(flow)


CapShare: TypeAlias = tuple[int, int]
"""A share of the rates that flows have alone, as numerator and denominator."""


def fair_rates(steps: Sequence[TaskStep], capacities: Sequence[int]) -> list[int]:
    """Return the rate of each of `steps`, all in flight at once, in nB/ps.

    The rates of all rise together, as a share of what each draws alone (its cap), so flows that
    contend slow down by the same factor. When a link is full (the sum of weight x rate is its
    capacity), all flows that use it stop; the others go on to their caps (Bertsekas and Gallager,
    "Data Networks", section 6.5.2, with weights that are the demands). Rates are rounded down, but
    never to 0: a link that is too slow for its flows at 1 nB/ps each is overdrawn.

    If all caps fit, as for a flow alone, every flow has its cap.
    """
    rates = [step.cap for step in steps]
    free = {link: capacities[link] for step in steps for link, _ in step.uses}
    rising = list(range(len(steps)))
    while rising:
        levels = _levels([steps[flow] for flow in rising], free)
        lowest = reduce(_lower, levels.values())
        if lowest[0] >= lowest[1]:
            break
        stopped = [flow for flow in rising if _stops(steps[flow], lowest, levels)]
        for flow in stopped:
            rates[flow] = max(1, steps[flow].cap * lowest[0] // lowest[1])
            for link, weight in steps[flow].uses:
                free[link] = max(0, free[link] - weight * rates[flow])
        rising = [flow for flow in rising if flow not in stopped]
    return rates


def _levels(steps: Sequence[TaskStep], free: dict[int, int]) -> dict[int, CapShare]:
    """Return the share of their caps at which `steps`, rising together, fill each link."""
    demand: dict[int, int] = {}
    for step in steps:
        for link, weight in step.uses:
            demand[link] = demand.get(link, 0) + weight * step.cap
    return {link: (free[link], wanted) for link, wanted in demand.items()}


def _lower(one: CapShare, other: CapShare) -> CapShare:
    return one if one[0] * other[1] <= other[0] * one[1] else other


def _stops(step: TaskStep, lowest: CapShare, levels: dict[int, CapShare]) -> bool:
    """Return True if one of its links is full at the lowest level."""
    return any(levels[link][0] * lowest[1] <= lowest[0] * levels[link][1] for link, _ in step.uses)
