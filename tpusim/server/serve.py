"""Requests served in time: arrivals, replicas, and what happens between them."""

from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
from simpy import Event

from tpusim.server.ample_replica import AmpleReplica
from tpusim.server.checks import check_outages, check_server, refused
from tpusim.server.moments import ARRIVAL, DOWN, UP, Moment, Picoseconds
from tpusim.server.policy import Policy
from tpusim.server.prompt_blocks import block_of, prompt_blocks
from tpusim.server.replica import Replica, Send
from tpusim.server.replica_pool import ReplicaPool, Router
from tpusim.server.request_log import RequestLog
from tpusim.server.sequence import Sequence
from tpusim.server.served import Begun, Served
from tpusim.server.span_log import MOST_SPANS, SpanLog
from tpusim.server.step_load import StepCosts
from tpusim.server.stepped_replica import SteppedReplica
from tpusim.traffic import Traffic


class Outage(NamedTuple):
    """A time in which a replica is down. It comes back with an empty cache.

    replica: its number; replicas that decode alone follow those that prefill.
    from_ps, to_ps: when it goes down, and when it serves again.
    """

    replica: int
    from_ps: int
    to_ps: int


class Watch(NamedTuple):
    """Who looks at a simulation on its way, and may end it.

    counts: numbers of requests, ascending, and less than all.
    ends: is asked once so many requests are sent whether the simulation ends.
    """

    counts: Many[int]
    ends: Callable[[Begun], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePool:
    """Replicas that decode alone, beside those that prefill.

    policy, costs, replicas, router: as of `serve`.
    transfer_ps: the time in which the cache of so many tokens comes to a replica of this pool.
    """

    policy: Policy
    costs: StepCosts
    transfer_ps: Callable[[int], int]
    replicas: int = 1
    router: Router = "round-robin"


def serve(
    traffic: Traffic,
    policy: Policy,
    costs: StepCosts,
    *,
    replicas: int = 1,
    router: Router = "round-robin",
    decode: DecodePool | None = None,
    ready_ps: int = 0,
    outages: Many[Outage] = (),
    fold: bool = True,
    watch: Watch | None = None,
) -> Served:
    """Return what becomes of each request of a traffic.

    Nothing is drawn, so the same input gives the same result.

    traffic: requests, and when they arrive.
    policy: of each replica.
    costs: of the steps of a replica.
    replicas: the number of them.
    router: which replica a request goes to; see `ReplicaPool`.
    decode: replicas that decode. Those of the other arguments then prefill alone: each request
        keeps its pages there until its cache has been transferred, which is when its first token
        is received.
    ready_ps: when the replicas begin to serve (cold start).
    outages: times in which replicas are down.
    fold: decode steps of the same sequences are one event; otherwise each step is one.
    watch: who looks at the simulation; where it is ended, requests lack what comes later.

    Raises ServerError for a policy that contradicts itself, and for a request that can never run.
    """
    pools = [(policy, replicas, router)]
    if decode is not None:
        pools.append((decode.policy, decode.replicas, decode.router))
    check_server(traffic.requests, pools)
    check_outages([(0, 0, ready_ps), *outages], sum(count for _, count, _ in pools))
    goes_down = bool(ready_ps or outages)
    server = _Server(traffic, policy, costs, replicas, router, decode, fold, goes_down)
    server.begin(ready_ps, outages)
    return server.run(watch or Watch((), lambda _: False))


class _Server:
    """Everything that happens, in one SimPy environment."""

    def __init__(
        self,
        traffic: Traffic,
        policy: Policy,
        costs: StepCosts,
        replicas: int,
        router: Router,
        decode: DecodePool | None,
        fold: bool,
        goes_down: bool,
    ) -> None:
        self.env = Picoseconds()
        self.traffic = traffic
        self.records = RequestLog(traffic.requests)
        self.request_ps = policy.request_ps
        self.refused = refused(traffic.requests, policy)
        self.block = block_of(traffic.requests, policy)
        self.logs: list[SpanLog] = []
        self.fold = fold
        self.goes_down = goes_down
        self.most = MOST_SPANS // (replicas + (decode.replicas if decode else 0))
        self.decode = decode
        self.next = 0
        self.awaited: tuple[int, Event] | None = None
        if decode is None:
            self.pool = ReplicaPool(self._replicas(policy, costs, replicas), router)
            self.decoders = self.pool
        else:
            prefill = replace(policy, drafted=0, accepted=1.0, reserve=None)
            self.pool = ReplicaPool(
                self._replicas(prefill, costs, replicas, send=self._send), router
            )
            self.decoders = ReplicaPool(
                self._replicas(decode.policy, decode.costs, decode.replicas), decode.router
            )

    def _replicas(
        self,
        policy: Policy,
        costs: StepCosts,
        count: int,
        send: Send | None = None,
    ) -> list[SteppedReplica]:
        first = len(self.logs)
        self.logs += [SpanLog(self.most) for _ in range(count)]
        made: list[SteppedReplica] = []
        for number in range(first, first + count):
            of_all = self.env, number, policy, costs, self.records, self.logs[number], self._done
            if self._is_ample(policy):
                made.append(AmpleReplica(*of_all, alone=count == 1))
                continue
            made.append(
                Replica(
                    *of_all,
                    send=send,
                    receives=send is None and self.decode is not None,
                    block=self.block,
                    fold=self.fold,
                )
            )
        return made

    def _is_ample(self, policy: Policy) -> bool:
        """Return whether an `AmpleReplica` does what a replica with this policy does."""
        if self.goes_down or self.block or self.decode is not None or not self.fold:
            return False
        requests = self.traffic.requests
        tokens = np.where(self.refused, 0, requests.prompt + requests.output)
        return AmpleReplica.suits(policy, int(tokens.max(initial=0)))

    def begin(self, ready_ps: int, outages: Many[Outage]) -> None:
        """Plan the outages and the first arrivals."""
        pools = [self.pool] if self.decode is None else [self.pool, self.decoders]
        members = [(pool, replica) for pool in pools for replica in pool.replicas]
        for number, (pool, replica) in enumerate(members):
            times = [(0, ready_ps), *((down, up) for at, down, up in outages if at == number)]
            for down, up in _merged(times):
                assert isinstance(replica, Replica)
                self._plan_outage(pool, replica, down, up)
        if self.traffic.users:
            for _ in range(self.traffic.users):
                self._send_next()
        elif len(self.traffic.requests):
            self._plan_arrival(self.env.now)

    def run(self, watch: Watch) -> Served:
        """Serve all requests, unless `watch` ends it."""
        for count in watch.counts:
            if self.next < count:
                self.awaited = count, self.env.event()
                self.env.run(until=self.awaited[1])
            if watch.ends(self.records.begun(count, self.env.now)):
                return self.records.served(self.logs)
        self.env.run()
        served = self.records.served(self.logs)
        assert ((served.last_ps >= 0) | self.refused).all(), "requests are left in the server"
        return served

    def _note_sent(self, awaited: tuple[int, Event]) -> None:
        """Let the simulation pause if as many requests are sent as somebody waits for."""
        count, reached = awaited
        if self.next >= count:
            reached.succeed()
            self.awaited = None

    def _plan_outage(self, pool: ReplicaPool, replica: Replica, down: int, up: int) -> None:
        def go_down(_: Event) -> None:
            pool.stop(replica)

        def come_up(_: Event) -> None:
            pool.start(replica)
            Moment(self.env, 0, ARRIVAL, release)

        def release(_: Event) -> None:
            pool.release()

        Moment(self.env, down, DOWN + replica.number, go_down)
        Moment(self.env, up, UP, come_up)

    # arrivals

    def _plan_arrival(self, now: int) -> None:
        """Plan the next arrival of an open loop."""
        sent = self.records.arrival[self.next]
        Moment(self.env, sent + self.request_ps - now, ARRIVAL, self._arrive)

    def _arrive(self, _: Event) -> None:
        """Let all requests enter that arrive now."""
        arrival, count = self.records.arrival, len(self.records.arrival)
        now = self.env.now
        sent = now - self.request_ps
        while self.next < count and arrival[self.next] <= sent:
            if not self.refused[self.next]:
                self._enter(self.next, now)
            self.next += 1
        if self.awaited is not None:
            self._note_sent(self.awaited)
        if self.next < count:
            self._plan_arrival(now)

    def _send_next(self) -> None:
        """Let a user of a closed loop send the next request that is not refused."""
        arrival = self.records.arrival
        while self.next < len(arrival):
            request = self.next
            self.next += 1
            now = arrival[request] = self.env.now
            if not self.refused[request]:
                enter = partial(self._enter, request, now + self.request_ps)
                Moment(self.env, self.request_ps, ARRIVAL, enter)
                return

    def _enter(self, request: int, now: int, _: Event | None = None) -> None:
        """Let a request enter that the host has taken in."""
        records = self.records
        records.present_ps -= now - self.request_ps
        sequence = Sequence(request, records.prompt[request], records.asked[request])
        if self.block:
            sequence.blocks = prompt_blocks(self.traffic.requests, request, self.block)
        self.pool.route(sequence)

    # what replicas report

    def _done(self, _: Sequence) -> None:
        if self.traffic.users:
            self._send_next()
            if self.awaited is not None:
                self._note_sent(self.awaited)

    def _send(self, replica: Replica, sequence: Sequence) -> None:
        """Transfer the cache of a prompt to a replica that decodes."""
        assert self.decode is not None
        pages, held = replica.ranks[sequence.rank].pages, sequence.pages

        def deliver(_: Event) -> None:
            pages.release(sequence, held)
            replica.wake()
            sequence.answered_ps = self.records.first[sequence.request] = self.env.now
            sequence.computed = sequence.tokens
            self.decoders.route(sequence)

        Moment(self.env, self.decode.transfer_ps(sequence.computed), ARRIVAL, deliver)


def _merged(times: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the times in which at least one of these lasts."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(times):
        if end <= start:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
