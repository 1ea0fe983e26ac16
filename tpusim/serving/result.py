"""The result of serving: throughput, latency, what bounds the server, and what it costs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from tpusim.base.short_repr import ShortRepr
from tpusim.base.text_table import fixed_table
from tpusim.base.units import JOULES_PER_KWH, format_dollars, format_seconds
from tpusim.hardware import Slice
from tpusim.models import Architecture
from tpusim.results import Fit, Result, entry
from tpusim.results.answers import need_words
from tpusim.results.unit_cost import UnitCost
from tpusim.server import Policy, Served
from tpusim.serving.metrics import TIMES, ServingMetrics, measure
from tpusim.serving.replica_loss import ReplicaLoss
from tpusim.serving.saturation import Load, load_of
from tpusim.serving.server_time import ServerTime, bounds_of, time_of
from tpusim.traffic import Traffic

MILLION = 1e6

WAITED = ("ttft", "e2e", "queue")
"""Times that grow with the length of the traffic where a server is saturated."""

SATURATED = "saturated"
LEAST_BOUND = 0.02
"""The smallest fraction of the time in steps that is named."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ServingResult(ShortRepr):
    """A server as simulated. Prints as a report; times in seconds.

    model: that is served.
    plan: how it is sharded, and its precision.
    pod: the slice of each replica.
    traffic: the requests.
    policy: of the engine.
    served: what became of each request, and what the server did over time.
    prefill, decode: a step of each kind as it is typical of the run; None of a kind that it lacks.
    replicas: servers with a slice each.
    metrics: of the requests and of the server, all requests included.
    load: what arrives, and whether the server keeps up.
    time: of all replicas, by what they do.
    decoding, decoding_replicas: slice and number of the replicas that decode alone, if others
        prefill.
    notes: what was assumed.
    loss: what the loss of a replica does, if one is lost.
    """

    model: Architecture
    plan: Any
    pod: Slice
    traffic: Traffic
    policy: Policy
    served: Served
    prefill: Result | None
    decode: Result | None
    replicas: int
    metrics: ServingMetrics
    load: Load
    time: ServerTime
    notes: tuple[str, ...] = ()
    decoding: Slice | None = None
    decoding_replicas: int = 0
    loss: ReplicaLoss | None = None

    @classmethod
    def of(
        cls, served: Served, traffic: Traffic, policy: Policy, *, replicas: int = 1, **own: Any
    ) -> Self:
        """Return the result of a simulated server, with its metrics.

        own: the other fields.
        """
        count = replicas + own.get("decoding_replicas", 0)
        return cls(
            served=served,
            traffic=traffic,
            policy=policy,
            replicas=replicas,
            metrics=measure(served, pages=policy.pages * policy.ranks, replicas=count),
            load=load_of(served, traffic.rate, traffic.users),
            time=time_of(served, policy, count),
            **own,
        )

    def __str__(self) -> str:
        return "\n".join(self._lines())

    @property
    def title(self) -> str:
        """The model and the slice, and how many of them there are."""
        each = f"{self.replicas} x " if self.replicas > 1 else ""
        apart = f", {self.decoding_replicas} x {self.decoding} decode" if self.decoding else ""
        return f"{self.model.name} on {each}{self.pod}{apart}"

    @property
    def chips(self) -> int:
        """Chips of all replicas."""
        return sum(pod.chips * count for pod, count in self._slices())

    def _slices(self) -> Iterator[tuple[Slice, int]]:
        """Yield the slice of a replica, and the number of them, for each kind of replica."""
        yield self.pod, self.replicas
        if self.decoding is not None:
            yield self.decoding, self.decoding_replicas

    @property
    def saturated(self) -> bool:
        """Requests arrive faster than the server answers them."""
        return self.load.saturated

    @property
    def cache_tokens(self) -> int:
        """Tokens that the cache of one replica holds, in whole pages."""
        return self.policy.pages * self.policy.ranks * self.policy.page_size

    @property
    def fullest(self) -> Result | None:
        """The step that takes most HBM; None without steps."""
        steps = [step for step in (self.prefill, self.decode) if step is not None]
        return max(steps, key=lambda step: step.hbm_peak_bytes, default=None)

    @property
    def fits(self) -> bool:
        """Both steps fit in HBM."""
        return self.fullest is None or self.fullest.fits

    @property
    def bounds(self) -> Mapping[str, float]:
        """What bounds the server: fractions of the time in steps by resource, the largest first.

        Those of the devices are of `prefill` in steps with tokens of prompts, and of `decode` in
        the others.
        """
        return bounds_of(self.time, self.prefill, self.decode)

    @property
    def cost(self) -> UnitCost | None:
        """Dollars for a million tokens in and out; None where the chip has no price."""
        return self._cost("total_tokens_per_s", "million tokens")

    @property
    def output_cost(self) -> UnitCost | None:
        """Dollars for a million generated tokens, with the prompts' part; None as `cost`."""
        return self._cost("output_tokens_per_s", "million output tokens")

    def _cost(self, rate: str, unit: str) -> UnitCost | None:
        if not self.metrics.numbers[rate]:
            return None
        seconds = MILLION / self.metrics.numbers[rate]
        costs = [UnitCost.of(pod, seconds * count, unit, None) for pod, count in self._slices()]
        known = [cost for cost in costs if cost is not None]
        if len(known) < len(costs):
            return None
        return known[0]._replace(usd=sum(cost.usd for cost in known))

    @property
    def energy_j(self) -> float | None:
        """Joules of the chips for a token in or out, at their mean power in use.

        None where that is not published, or nothing was answered.
        """
        rate, whole = self.metrics.numbers["total_tokens_per_s"], 0.0
        for pod, count in self._slices():
            if pod.watts is None:
                return None
            whole += pod.watts * count
        return whole / rate if rate else None

    def facts(self) -> dict[str, Any]:
        """Return the result as plain data, in SI units and fractions.

        Times that grow with the length of the traffic are null where the server is saturated.
        """
        found = self.metrics.facts()
        if self.saturated:
            found |= {f"{key}_s": None for key in WAITED}
        cost, output = self.cost, self.output_cost
        return {
            "model": self.model.name,
            "slice": str(self.pod),
            "chips": self.chips,
            "replicas": self.replicas,
            "plan": str(self.plan),
            "engine": {"name": self.policy.engine, "version": self.policy.version},
            "traffic": str(self.traffic),
            "saturated": self.saturated,
            "offered_requests_per_s": self.load.offered,
            "sustainable_requests_per_s": self.load.sustainable,
            "metrics": found,
            "fits": self.fits,
            "cache_tokens": self.cache_tokens,
            "time_s": self.time.facts(),
            "bounds": dict(self.bounds),
            "prefill_step_s": None if self.prefill is None else self.prefill.step_time_s,
            "decode_step_s": None if self.decode is None else self.decode.step_time_s,
            "usd_per_million_tokens": None if cost is None else cost.usd,
            "usd_per_million_output_tokens": None if output is None else output.usd,
            "joules_per_token": self.energy_j,
            "notes": list(self.notes),
            **({} if self.loss is None else {"failures": self.loss.facts()}),
        }

    def _lines(self) -> Iterator[str]:
        fullest = self.fullest
        if fullest is not None and fullest.fit is not Fit.FITS:
            yield from entry(fullest.fit.upper(), f"needs {need_words(fullest)}")
        if self.saturated:
            yield from entry(SATURATED.upper(), self.saturation)
        yield from entry("serving", f"{self.title} ({self.chips} chip{'s' * (self.chips > 1)})")
        yield from entry("traffic", self._traffic())
        yield ""
        yield from entry("throughput", self._throughput())
        yield from fixed_table(list(self._latency_rows()), (12, *[11] * 6))
        yield ""
        yield from entry("load", self._load())
        if fullest is not None and fullest.fit is Fit.FITS:
            yield from entry("HBM", f"fits: {need_words(fullest)}, without the cache")
        yield from entry("cache", self._cache())
        yield from entry("bound by", self._bounds())
        if self.cost is not None and self.output_cost is not None:
            dollars = format_dollars(self.output_cost.usd)
            yield from entry("cost", f"{dollars} per million output tokens; {self.cost}")
        if (joules := self.energy_j) is not None:
            kwh = joules * MILLION / JOULES_PER_KWH
            yield from entry("energy", f"{kwh:.3g} kWh of the chips per million tokens")
        yield ""
        if self.loss is not None:
            yield from self.loss.lines()
            yield ""
        yield from self._details()

    @property
    def saturation(self) -> str:
        """The rates that arrive and start, in words, of a saturated server."""
        load = self.load
        return (
            f"{number(load.offered)} requests/s arrive, and {number(load.sustainable)} requests/s "
            "start: waiting times grow as long as requests arrive"
        )

    def _traffic(self) -> str:
        metrics = self.metrics
        seconds = format_seconds(metrics.duration_s)
        refused = metrics.numbers["refused"]
        count = f"{metrics.requests:,} count, {refused:,} refused" if refused else "all count"
        return f"{self.traffic}; {count}; {seconds} from the first request to the last token"

    def _throughput(self) -> str:
        numbers = self.metrics.numbers
        return (
            f"{number(numbers['requests_per_s'])} requests/s, "
            f"{number(numbers['input_tokens_per_s'])} tokens/s in, "
            f"{number(numbers['output_tokens_per_s'])} tokens/s out"
        )

    def _latency_rows(self) -> Iterator[tuple[str, ...]]:
        yield "latency", "p50", "p90", "p95", "p99", "mean", "maximum"
        for key, metric in TIMES.items():
            yield f"  {metric.title}", *self.shown_times(key)

    def shown_times(self, key: str) -> tuple[str, ...]:
        """Return the percentiles, the mean and the maximum of a metric of `TIMES`, as printed."""
        found = self.metrics.times[key]
        if self.saturated and key in WAITED:
            return (SATURATED,)
        shown = (found.p50, found.p90, found.p95, found.p99, found.mean, found.maximum)
        return tuple("-" if each != each else format_seconds(each) for each in shown)

    def _load(self) -> str:
        numbers = self.metrics.numbers
        return (
            f"in steps {numbers['utilisation']:.1%} of the time, {numbers['batch']:,.3g} sequences "
            "decode in a step"
        )

    def _cache(self) -> str:
        numbers, policy = self.metrics.numbers, self.policy
        parts = [
            f"{self.cache_tokens:,} tokens in pages of {policy.page_size}",
            f"{numbers['cache_use']:.1%} taken, {numbers['cache_peak']:.1%} at most",
            f"{numbers['preemptions']:,} preemption{'s' * (numbers['preemptions'] != 1)}",
        ]
        if policy.prefix_cache:
            parts.append(f"{numbers['prefix_hit_rate']:.1%} of the prompt tokens found in it")
        return ", ".join(parts)

    def _bounds(self) -> str:
        """Return what takes the time in steps, and whether requests wait for it."""
        found = [(name, share) for name, share in self.bounds.items() if share >= LEAST_BOUND]
        if not found:
            return "nothing"
        first, *others = (f"{name} {share:.1%}" for name, share in found)
        waits = self.metrics.times["queue"].mean / self.metrics.times["e2e"].mean
        queue = f"; requests wait {waits:.1%} of their time in the queue" * (not self.saturated)
        return ", ".join([f"{first} of the time in steps", *others]) + queue

    @property
    def engine_words(self) -> str:
        """The engine, its version and its limits, in words."""
        policy = self.policy
        name = " ".join(filter(None, (policy.engine, policy.version))) or "no name"
        ranks = f" on each of {policy.ranks} ranks" if policy.ranks > 1 else ""
        return (
            f"{name}: up to {policy.max_num_seqs:,} sequences and "
            f"{policy.max_num_batched_tokens:,} tokens per step{ranks}"
        )

    def _details(self) -> Iterator[str]:
        yield from entry("plan", str(self.plan))
        yield from entry("engine", self.engine_words)
        for head, step in (("prefill", self.prefill), ("decode", self.decode)):
            if step is not None:
                yield from entry(head, step_words(step))
        for note in self.notes:
            yield from entry("note", note)


def step_words(step: Result) -> str:
    """Return how long a step takes, for which load, and its MFU."""
    load = dict(step.about()).get("load")
    head = f"a step of {format_seconds(step.step_time_s)}{f': {load}' if load else ''}"
    return head if step.mfu is None else f"{head}; MFU {step.mfu:.1%}"


def number(value: float) -> str:
    """Return a rate with three digits, and whole from 100 on.

    >>> number(3.14159), number(12345.6)
    ('3.14', '12,346')
    """
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.3g}"
