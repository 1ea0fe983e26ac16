"""Flows over shared links, at fair rates.

A flow keeps its share until it ends, at the later of `work_ps` after its start and the time at
which its volume has drained; its cap is its volume over `work_ps`, so the two differ only when
others slow it down, or by rounding.

The rates are a function of which steps are in flight, so they are computed once for each such set.
The network schedules one wake-up, for the earliest end; when rates change, a later one takes its
place and the overtaken one is recognised by its number.
"""

from collections.abc import Callable, Sequence
from itertools import count

from simpy import Environment, Event
from simpy.events import Timeout

from tpusim.engine.code import Step
from tpusim.engine.filling import fair_rates


class Flow:
    """The flow phase of one task: `remaining` nanobytes at the time `since`, drained at `rate`."""

    __slots__ = ("due", "earliest", "finish", "rate", "remaining", "since", "started", "step")

    def __init__(
        self, step: Step, started: int, now: int, finish: "Callable[[Flow], object]"
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
        """Nanobytes that have not drained by `now`."""
        return max(0, self.remaining - self.rate * (now - self.since))

    def change_rate(self, rate: int, now: int) -> None:
        """Drain at `rate` from `now` on."""
        self.remaining = self.left(now)
        self.since = now
        self.rate = rate
        self.due = max(self.earliest, now - (-self.remaining // rate))


class Network:
    """All flows of all lanes; `rates` are the capacities of the links in nB/ps."""

    __slots__ = ("_env", "_known", "flows", "numbers", "rates", "wake", "wake_due")

    def __init__(self, env: Environment, rates: Sequence[int]) -> None:
        self._env = env
        self._known: dict[tuple[Step, ...], list[int]] = {}
        self.rates = rates
        self.flows: list[Flow] = []
        self.numbers = count()
        self.wake = -1
        self.wake_due = -1

    def start(self, flow: Flow) -> None:
        """Put `flow` on its links; `flow.finish` is called with it when it ends."""
        self.flows.append(flow)
        self._share(int(self._env.now))

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
            after(self._env, due - now, self.wake, self._wake_up)

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
        now = int(self._env.now)
        self.wake = self.wake_due = -1
        ended = [flow for flow in self.flows if flow.due <= now]
        self.flows = [flow for flow in self.flows if flow.due > now]
        self._share(now)
        for flow in ended:
            flow.finish(flow)


def after(env: Environment, delay: int, number: int, callback: Callable[[Event], None]) -> None:
    """Call `callback` once, `delay` picoseconds from now, with an event of value `number`."""
    timeout = Timeout(env, delay, number)
    timeout.callbacks.append(callback)
