"""Messages over the physical links of the torus, hop by hop: the check on the flows.

Virtual cut-through (Kermani and Kleinrock, Computer Networks 3, 1979): the head of a message
requests its first link once all messages that it follows have arrived. It gets each link when the
link is free, first come first served, and holds it for bytes / rate; `hop_ps` after it got the
link, its head requests the next one, whether or not the tail has left. The message has arrived
`hop_ps` after its tail has left the last link. Heads that come to a link at one time get it in the
order in which their collectives began and, within one, of their indices.

Heads are taken in this order, so a link is a number: the time from which it is free. No collective
begins before SimPy's next event, and one that begins then comes last, so all crossings up to then
are worked out at once: SimPy sees the ends of the collectives, and not their messages.
"""

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from simpy import Event

from tpusim.engine.flows import Flow, FlowNetwork
from tpusim.engine.instructions import CollectiveMessages
from tpusim.engine.lane_clock import LaneClock


class LinkCrossing(NamedTuple):
    """A message of a task that held a link from one time to another."""

    task: str
    message: int
    link: int
    start_ps: int
    end_ps: int


class InFlightCollective:
    """One collective in flight.

    first: the number of its message 0 among all that were ever sent.
    awaited: the messages that each message still waits for.
    ready: the latest arrival of those that each waited for.
    left: messages that have not crossed their last link.
    parts: of its messages and its rest, those that have not ended.
    """

    __slots__ = ("arrived", "awaited", "first", "flow", "left", "messages", "parts", "ready")

    def __init__(self, flow: Flow, messages: CollectiveMessages, first: int, now: int) -> None:
        self.flow = flow
        self.messages = messages
        self.first = first
        self.awaited = list(messages.awaited)
        self.ready = [now] * len(messages.paths)
        self.left = len(messages.paths)
        self.arrived = now
        self.parts = 1 if messages.rest is None else 2


class HopNetwork:
    """The physical links of one lane; `rates` are theirs in nB/ps.

    crossings: the number so far.
    log: each of them, if a list is given.
    """

    def __init__(
        self,
        clock: LaneClock,
        flows: FlowNetwork,
        rates: Sequence[int],
        log: list[LinkCrossing] | None = None,
    ) -> None:
        self.crossings = 0
        self.log = log
        self._clock = clock
        self._flows = flows
        self._rates = rates
        self._free = [0] * len(rates)
        # When a head comes to a link, the number of its message, which link of its path it is, and
        # when the tail would be there if no later link held it back.
        self._heads: list[tuple[int, int, int, int, InFlightCollective]] = []
        self._sent = 0
        self._wake = 0
        self._wake_due = -1

    def start(self, flow: Flow, messages: CollectiveMessages) -> None:
        """Send `messages`; `flow.finish` is called when all have arrived and the rest has drained.

        The task's flow over links off the torus drains beside them.
        """
        now = self._clock.now
        flight = InFlightCollective(flow, messages, self._sent, now)
        self._sent += flight.left
        for message, awaited in enumerate(messages.awaited):
            if not awaited:
                heappush(self._heads, (now, flight.first + message, 0, now, flight))
        if messages.rest is not None:
            rest = Flow(messages.rest, now, now, lambda _: _end_part(flight))
            self._flows.start(rest)
        if not flight.left:
            self._land(flight)
        self._schedule()

    def _schedule(self) -> None:
        """Wake up when the next head comes to a link, unless that is already scheduled."""
        if self._heads and not 0 <= self._wake_due <= self._heads[0][0]:
            self._wake_due = self._heads[0][0]
            self._wake += 1
            self._clock.call_after(self._wake_due - self._clock.now, self._wake, self._wake_up)

    def _wake_up(self, event: Event) -> None:
        if event.value == self._wake:
            self._wake_due = -1
            self._advance(self._clock.env.peek())
            self._schedule()

    def _advance(self, until: float) -> None:
        """Make all crossings up to `until`, or to the end of a collective, when others start."""
        heads, free, rates, log = self._heads, self._free, self._rates, self.log
        while heads and heads[0][0] <= until:
            now, number, place, tail, flight = heappop(heads)
            messages = flight.messages
            message = number - flight.first
            path = messages.paths[message]
            if path:
                link = path[place]
                # Conditions, as calls of `max` took a quarter of the whole time.
                start = free[link] if free[link] > now else now
                end = start - (-messages.volumes[message] // rates[link])
                free[link] = end
                tail = (tail if tail > end else end) + messages.hop_ps
                self.crossings += 1
                if log is not None:
                    log.append(LinkCrossing(flight.flow.step.task.name, message, link, start, end))
                place += 1
                if place < len(path):
                    heappush(heads, (start + messages.hop_ps, number, place, tail, flight))
                    continue
            self._arrive(flight, message, tail)
            if not flight.left:
                until = min(until, flight.arrived)

    def _arrive(self, flight: InFlightCollective, message: int, time: int) -> None:
        """Book that `message` arrives at `time`, and send those that wait for no other."""
        flight.arrived = max(flight.arrived, time)
        awaited, ready = flight.awaited, flight.ready
        for other in flight.messages.followers[message]:
            if ready[other] < time:
                ready[other] = time
            awaited[other] -= 1
            if not awaited[other]:
                at = ready[other]
                heappush(self._heads, (at, flight.first + other, 0, at, flight))
        flight.left -= 1
        if not flight.left:
            self._land(flight)

    def _land(self, flight: InFlightCollective) -> None:
        delay = flight.arrived - self._clock.now
        self._clock.call_after(delay, 0, lambda _: _end_part(flight))


def _end_part(flight: InFlightCollective) -> None:
    flight.parts -= 1
    if not flight.parts:
        flight.flow.finish(flight.flow)
