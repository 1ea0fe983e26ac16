"""A search for servers: in the order of what they can cost at least, until none can be better.

A server is taken up to four times, each time with a higher bound of its rank: with its price alone,
with bounds of its latencies and work, after a simulation of the first requests, and after one of
all, which ends as soon as its bounds say that the server is no answer. So the first `top` servers
that are simulated and meet the targets are the best.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from time import monotonic
from typing import Any, TypeAlias

from tpusim.base.checked_call import checked_call
from tpusim.base.collection import garbage_collector_off
from tpusim.base.errors import PlanError, ServerError
from tpusim.base.shown_value import shown
from tpusim.models import Architecture
from tpusim.serving.configuration import Configuration
from tpusim.serving.search.found_server import (
    FoundServer,
    ServerSearch,
    checked_server_objectives,
    objective_value,
)
from tpusim.serving.search.known_runs import Found, KnownRuns, found_in
from tpusim.serving.search.server_bounds import ServerBounds, server_bounds
from tpusim.serving.search.server_space import ServerSpace
from tpusim.serving.search.targets import LATENCIES, OUTPUT, Seconds, Targets, title
from tpusim.serving.serve import Server
from tpusim.serving.step_table import SharedSteps
from tpusim.simulation.arguments import check_model
from tpusim.traffic import Traffic
from tpusim.traffic.parts import first_requests

LOOKS = 10
"""A simulation may end after each tenth of the requests."""

LEAST_SCREENED = 100
"""Sent requests after which a simulation may end, at least."""

LIKELY, NEAREST = 48, 4
"""Servers of which a few requests, and then all, are simulated to say which is the nearest, where
none meets the targets."""

UNBOUNDED = {**dict.fromkeys(LATENCIES, 0.0), OUTPUT: float("inf")}
"""Bounds of what targets are of, where nothing is known."""

Rank: TypeAlias = tuple[float, ...]
Progress: TypeAlias = Callable[[int, int], None]


@checked_call
def search_servers(
    model: Architecture | str,
    space: ServerSpace,
    traffic: Traffic,
    targets: Targets,
    *,
    objective: str | Sequence[str] = "cost",
    top: int = 1,
    progress: Progress | None = None,
) -> ServerSearch:
    """Find the best servers that meet targets, and prove that there are no better ones.

    model: an `Architecture`, or a name of the zoo.
    space: the servers to choose from.
    traffic: the requests of all replicas together.
    targets: what a server has to meet.
    objective: `cost` (USD per hour), `token_cost` (USD per million generated tokens), `chips` or a
        latency of `Targets`; servers that are equal in it are ordered by the largest part of a
        target that they take. Two objectives give their Pareto front.
    top: servers to find; a front has as many as it has.
    progress: is called with the servers that are done, and all.

    Raise PlanError for objectives that there are not, and TrafficError without requests.
    """
    model = check_model(model, "write search_servers(model, space, traffic, targets)", "search")
    for value, kind in ((space, ServerSpace), (traffic, Traffic), (targets, Targets)):
        if not isinstance(value, kind):
            raise PlanError(f"{shown(value)} is no {kind.__name__}; write a ts.{kind.__name__}")
    if isinstance(top, bool) or not isinstance(top, int) or top < 1:
        raise PlanError(f"search.top is {top!r}; write a whole number from 1 up")
    names = checked_server_objectives(objective)
    with garbage_collector_off():
        hunt = _Hunt(model, space, traffic, targets, names, top, progress)
        return hunt.run()


@dataclass(slots=True)
class _Candidate:
    """A server that may be the answer.

    server: before its traffic; None before it is first taken up.
    bounds: of its latencies and work, likewise.
    least: bounds of what targets are of, by name.
    """

    configuration: Configuration
    server: Server | None = None
    bounds: ServerBounds | None = None
    least: Mapping[str, float] = field(default_factory=lambda: UNBOUNDED)
    begun: bool = False
    strain: float = 0.0


@dataclass
class _Hunt:
    """The state of a search.

    queue: candidates by the lower bounds of their ranks.
    ruled_out: candidates that a bound rules out, as it says that they miss a target.
    """

    model: Architecture
    space: ServerSpace
    traffic: Traffic
    targets: Targets
    names: tuple[str, ...]
    top: int
    progress: Progress | None
    left_out: Counter[str] = field(default_factory=Counter)
    known: dict[Any, SharedSteps] = field(default_factory=dict)
    queue: list[tuple[Rank, int, _Candidate]] = field(default_factory=list)
    tried: list[FoundServer] = field(default_factory=list)
    best: list[FoundServer] = field(default_factory=list)
    ruled_out: list[_Candidate] = field(default_factory=list)
    pushed: int = 0
    done: int = 0

    def __post_init__(self) -> None:
        self.runs = KnownRuns(self.traffic, looks(len(self.traffic.requests)))

    def run(self) -> ServerSearch:
        """Search until no candidate can be better than what was found."""
        began = monotonic()
        for configuration in self.space.configurations(self.left_out):
            self._push(_Candidate(configuration))
        servers = self.pushed
        while self.queue:
            rank, _, candidate = heappop(self.queue)
            if self._beaten(rank):
                self.done += 1
                if len(self.names) == 1:
                    break
                continue
            self._take_up(candidate)
            if self.progress is not None:
                self.progress(self.done, servers)
        nearest = None if self.best else self._nearest()
        return ServerSearch(
            targets=self.targets,
            objectives=self.names,
            best=tuple(self.best),
            tried=tuple(self.tried),
            nearest=nearest,
            servers=servers,
            left_out=dict(self.left_out.most_common()),
            seconds=monotonic() - began,
        )

    def _push(self, candidate: _Candidate) -> None:
        """Put a candidate in the queue, by what is known of its rank."""
        heappush(self.queue, (self._rank(candidate), self.pushed, candidate))
        self.pushed += 1

    def _rank(self, candidate: _Candidate) -> Rank:
        """Return a lower bound of the rank of a candidate."""
        least, configuration = candidate.least, candidate.configuration
        ranked = (objective_value(name, configuration, least) for name in self.names)
        return (*ranked, candidate.strain)

    def _beaten(self, rank: Rank) -> bool:
        """Return whether a server with a rank of at least `rank` is no answer."""
        if len(self.names) == 1:
            return len(self.best) >= self.top and rank >= self.best[self.top - 1].rank
        objectives = rank[:-1]
        return any(_dominates(each.objectives, objectives) for each in self.best)

    def _take_up(self, candidate: _Candidate) -> None:
        """Take up a candidate: bound it, or simulate it."""
        try:
            if candidate.server is not None:
                self._simulate(candidate)
                return
            configuration = candidate.configuration
            candidate.server = self._server(configuration)
            bounds = server_bounds(candidate.server, self.traffic, configuration.replicas)
            if not self._rules_out(candidate, bounds, "by a bound"):
                self._push(candidate)
        except (PlanError, ServerError) as error:
            self.done += 1
            self.left_out[str(error)] += 1

    def _server(self, configuration: Configuration) -> Server:
        known = self.known.setdefault(configuration.step_key, SharedSteps())
        return configuration.server(self.model, self.traffic, known)

    def _rules_out(self, candidate: _Candidate, bounds: ServerBounds, how: str) -> bool:
        """Return whether bounds of a candidate say that it misses a target."""
        candidate.bounds = bounds
        candidate.least = values = bounds.values()
        candidate.strain = self.targets.strain(values)
        if not bounds.saturated and candidate.strain <= 1:
            return False
        missed = [title(name) for name in self.targets.missed(values)]
        what = "requests outrun it" if bounds.saturated else f"it misses {missed[0]}"
        self.left_out[f"{what}, {how}"] += 1
        self.ruled_out.append(candidate)
        self.done += 1
        return True

    def _ends(self, candidate: _Candidate, begun: Mapping[str, Seconds]) -> bool:
        """Return whether the simulation of a candidate ends with the requests that are begun.

        It goes on where it may be an answer. At its first requests, one that is not the next in
        the order is put back; for a front, the order is that of the first objective, since one
        that is equal in it may be an answer however the second one turns out.
        """
        assert candidate.bounds is not None
        if self._rules_out(candidate, candidate.bounds.raised(begun), "by its first requests"):
            return True
        rank = self._rank(candidate)
        if self._beaten(rank):
            self.done += 1
            return True
        if not candidate.begun:
            candidate.begun = True
            order = rank if len(self.names) == 1 else rank[:1]
            if self.queue and order > self.queue[0][0][: len(order)]:
                self._push(candidate)
                return True
        return False

    def _simulate(self, candidate: _Candidate) -> None:
        """Simulate a candidate until it is known whether it is an answer, and keep it if it is."""
        assert candidate.server is not None
        found = self.runs.of(
            candidate.configuration, candidate.server, partial(self._ends, candidate)
        )
        if found is not None:
            self.done += 1
            self._note(candidate, found)

    def _note(self, candidate: _Candidate, found: Found) -> None:
        """Note what was found in the simulation of all requests."""
        values, load = found
        assert candidate.server is not None
        server = FoundServer(
            candidate.configuration,
            values,
            load,
            self.targets.strain(values),
            tuple(objective_value(name, candidate.configuration, values) for name in self.names),
            candidate.server.room.tokens,
        )
        self.tried.append(server)
        if server.meets:
            self._keep(server)

    def _keep(self, found: FoundServer) -> None:
        """Keep a server among the best."""
        if len(self.names) == 1:
            self.best = sorted([*self.best, found], key=lambda each: each.rank)[: self.top]
        elif not any(_dominates(each.objectives, found.objectives) for each in self.best):
            kept = [one for one in self.best if not _dominates(found.objectives, one.objectives)]
            self.best = sorted([*kept, found], key=lambda each: each.rank)

    def _nearest(self) -> FoundServer | None:
        """Return the server that misses the targets least, of those that are simulated.

        Of those that a bound ruled out, the nearest by their first requests are simulated too.
        """
        first = first_requests(self.traffic, LEAST_SCREENED)
        ahead = sorted(self.ruled_out, key=lambda each: each.strain)
        near = []
        for number, candidate in enumerate(ahead[:: max(1, len(ahead) // LIKELY)]):
            values, _ = self._served(candidate, first)
            near.append((self.targets.strain(values), number, candidate))
        for _, _, candidate in sorted(near)[:NEAREST]:
            self._note(candidate, self._served(candidate, self.traffic))
        return min(self.tried, key=FoundServer.distance, default=None)

    def _served(self, candidate: _Candidate, traffic: Traffic) -> Found:
        assert candidate.server is not None
        return found_in(candidate.configuration.served(candidate.server, traffic), traffic)


def looks(count: int) -> list[int]:
    """Return after how many of the sent requests a simulation may end."""
    sent = (count * part // LOOKS for part in range(1, LOOKS))
    return [each for each in sent if each >= LEAST_SCREENED]


def _dominates(one: Rank, other: Rank) -> bool:
    """Return whether one is at most the other in all objectives."""
    return all(a <= b for a, b in zip(one, other, strict=True))
