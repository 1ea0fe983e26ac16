"""The knee of a server: the load that saturates it, found with a few simulations."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import ceil, sqrt
from typing import Any

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import TrafficError
from tpusim.base.short_repr import ShortRepr
from tpusim.hardware import Slice
from tpusim.models import Architecture
from tpusim.plan import ServingPlan
from tpusim.results import entry
from tpusim.server.replica_pool import Router
from tpusim.serving.configuration import Configuration
from tpusim.serving.engines import Engine
from tpusim.serving.full_load import closed_form_rate, slots
from tpusim.serving.metrics import measure
from tpusim.serving.result import SATURATED, number
from tpusim.serving.saturation import FULL, load_of, start_rate
from tpusim.serving.serve import DEFAULT_ENGINE, ORDER, Server
from tpusim.simulation.arguments import check_model, check_slice
from tpusim.traffic import Traffic
from tpusim.traffic.parts import repeated

TOLERANCE = 0.03
"""The ratio, less one, of the least load that saturates and the largest that does not."""

MOST_STEPS = 24
"""Simulations at most: bisection needs no more from any start."""

LEAST_REQUESTS, ROUNDS = 6000, 4
"""Requests of a simulation at least, and those for each sequence that a full server runs: half of
them arrive while it fills. With 1,000, loads of up to 11 % more than a server sustains passed
(llama3.1-8b on v6e:2x2)."""

OVERLOAD = 1.2
"""The first load of a bisection over what closed forms say."""


@dataclass(frozen=True, slots=True, repr=False)
class Knee(ShortRepr):
    """The load that saturates a server, between two that were simulated.

    load: requests/s of an open loop, or users of a closed one.
    unit: `requests/s` or `users`.
    below, above: the largest load that does not saturate, and the least that does.
    output_tokens_per_s: tokens that are generated in a second at `below`.
    loads: load -> whether it saturates, of all that were simulated, ascending.
    closed_form: what closed forms say.
    title: of the server.
    """

    load: float
    unit: str
    below: float
    above: float
    output_tokens_per_s: float
    loads: Mapping[float, bool]
    closed_form: float
    title: str = field(default="")

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield from entry(
            "knee",
            f"{self.title} saturates at {number(self.load)} {self.unit}, with "
            f"{number(self.output_tokens_per_s)} tokens/s out",
        )
        simulated = (
            f"{number(load)} {SATURATED if over else 'not'}" for load, over in self.loads.items()
        )
        yield from entry("simulated", f"{', '.join(simulated)}")

    def facts(self) -> dict[str, Any]:
        """Return the knee as plain data."""
        return {
            "load": self.load,
            "unit": self.unit,
            "below": self.below,
            "above": self.above,
            "output_tokens_per_s": self.output_tokens_per_s,
            "closed_form": self.closed_form,
            "simulated": [{"load": a, SATURATED: over} for a, over in self.loads.items()],
        }


@checked_call
def knee(
    model: Architecture | str,
    plan: ServingPlan,
    pod: Slice | str,
    traffic: Traffic,
    engine: Engine | None = None,
    *,
    replicas: int = 1,
    router: Router = "round-robin",
    drafted: int = 0,
    accepted: float = 1.0,
) -> Knee:
    """Find the load that saturates a server by bisection, from what closed forms say.

    An open loop saturates as `saturation.load_of` says, with the requests of the traffic at another
    rate. A closed loop saturates a server with the fewest users that reach 95 % of the throughput
    of as many as fill it. The traffic is repeated where it is too short to tell.

    model, plan, pod, traffic, engine: as of `ts.serve`.
    replicas, router, drafted, accepted: likewise.

    Raise PlanError and ServerError as `ts.serve` does, and TrafficError for requests that all
    arrive at once, which have no load.
    """
    model, pod = check_model(model, ORDER, "knee"), check_slice(pod, ORDER)
    engine = engine or Engine.of(DEFAULT_ENGINE, chip=pod.chip.generation)
    given = Configuration(
        pod=pod,
        plan=plan,
        engine=engine,
        replicas=replicas,
        router=router,
        drafted=drafted,
        accepted=accepted,
    )
    return knee_of(given, model, traffic)


def knee_of(server: Configuration, model: Architecture, traffic: Traffic) -> Knee:
    """Return the knee of a configuration; see `knee`."""
    if not traffic.users and not (len(traffic.requests) and traffic.requests.arrival_ps[-1]):
        raise TrafficError(
            f"{traffic.source or 'this traffic'} has no load, as all requests arrive at once; make "
            "other traffic, such as Traffic.poisson(rate=..., pairs=traffic)"
        )
    kind = _Users if traffic.users else _Rates
    found = kind(server, model, server.server(model, traffic), traffic)
    each = f"{server.replicas} x " if server.replicas > 1 else ""
    return replace(found.knee(), title=f"{model.name} on {each}{server.pod}")


@dataclass
class _Search:
    """A bisection: loads that were simulated, and the two around the knee.

    replica: of the server, before its traffic.
    """

    server: Configuration
    model: Architecture
    replica: Server
    traffic: Traffic
    loads: dict[float, bool] = field(default_factory=dict)
    below: float = 0.0
    above: float = float("inf")
    tokens: float = 0.0

    @property
    def full(self) -> int:
        """Sequences that all replicas run at a time."""
        return slots(self.replica, self.traffic) * self.server.replicas

    def note(self, load: float, tokens: float, *, saturated: bool) -> None:
        """Note what a simulation said of a load."""
        self.loads[load] = saturated
        if saturated:
            self.above = min(self.above, load)
        elif load > self.below:
            self.below, self.tokens = load, tokens

    @property
    def open(self) -> bool:
        """The two loads around the knee are further apart than `TOLERANCE`."""
        apart = self.above > self.below * (1 + TOLERANCE)
        return apart and len(self.loads) < MOST_STEPS

    def found(self, load: float, unit: str, closed_form: float) -> Knee:
        """Return the knee."""
        loads = dict(sorted(self.loads.items()))
        return Knee(load, unit, self.below, self.above, self.tokens, loads, closed_form)


class _Rates(_Search):
    """The knee of an open loop."""

    def knee(self) -> Knee:
        """Return the rate between those that saturate and those that do not."""
        traffic = repeated(self.traffic, max(LEAST_REQUESTS, ROUNDS * self.full))
        count = self.server.replicas
        batch = self.full // count
        guess = closed_form_rate(self.replica, traffic, batch) * count
        requests = traffic.requests
        drawn = (len(requests) - 1) / (requests.arrival_ps[-1] * 1e-12)
        rate = drawn if traffic is not self.traffic else traffic.rate or drawn
        ahead = guess * OVERLOAD
        while self.open:
            ahead = self._next(traffic, rate, ahead)
        return self.found(sqrt(self.below * self.above), "requests/s", guess)

    def _next(self, traffic: Traffic, rate: float, load: float) -> float:
        """Simulate a load, and return the next one."""
        served = self.server.served(self.replica, traffic.scaled(load / rate))
        found = load_of(served, load if traffic.rate else 0.0)
        tokens = float(served.output.sum()) / max(float(served.last_ps.max()) * 1e-12, 1e-12)
        self.note(load, tokens, saturated=found.saturated)
        if self.above == float("inf"):
            return load * 2 * OVERLOAD
        if not self.below:
            return min(found.sustainable, load / (1 + TOLERANCE)) / sqrt(1 + TOLERANCE)
        return sqrt(self.below * self.above)


class _Users(_Search):
    """The knee of a closed loop."""

    def knee(self) -> Knee:
        """Return the fewest users that reach `FULL` of the throughput of a full server."""
        full, count = self.full, self.server.replicas
        most = 2 * full
        rate, tokens = self._rate(most)
        self.note(float(most), tokens, saturated=True)
        whole = closed_form_rate(self.replica, self.traffic, full // count)
        guess = self._guess(whole * FULL, full // count) * count
        ahead = max(1, min(guess, most - 1))
        while self.open and self.above - self.below > 1:
            other, tokens = self._rate(ahead)
            self.note(float(ahead), tokens, saturated=other >= FULL * rate)
            ahead = self._between(ahead)
        return self.found(self.above, "users", float(guess))

    def _between(self, last: int) -> int:
        """Return users between those around the knee: first near the last ones, then halfway."""
        low, high = int(self.below), int(self.above)
        if len(self.loads) == 2:
            near = ceil(last * 1.1) if last == low else int(last / 1.1)
            if low < near < high:
                return near
        return max(low + 1, min(high - 1, round(sqrt(max(low, 1) * high))))

    def _rate(self, users: int) -> tuple[float, float]:
        """Return the requests that start in a second, and the tokens that are generated."""
        traffic = repeated(self.traffic, max(LEAST_REQUESTS, ROUNDS * users))
        served = self.server.served(self.replica, replace(traffic, users=users))
        policy = self.replica.policy
        found = measure(served, pages=policy.pages * policy.ranks, replicas=self.server.replicas)
        return start_rate(served), found.numbers["output_tokens_per_s"]

    def _guess(self, rate: float, most: int) -> int:
        """Return the users of a replica with which closed forms reach a rate."""
        low, high = 0, most
        while high - low > 1:
            middle = (low + high) // 2
            if closed_form_rate(self.replica, self.traffic, middle) >= rate:
                high = middle
            else:
                low = middle
        return high
