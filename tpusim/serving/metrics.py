"""The metrics of serving, each defined here alone: its name, what it is, its unit, its formula.

They cover all requests that are answered, from the moment at which the first one was sent to the
last token of the last one, as `vllm bench serve` does: neither the time in which the server fills
nor that in which it drains is left out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import PlanError, nearest
from tpusim.base.quantiles import weighted_quantiles
from tpusim.server import Served

PICO = 1e-12
Seconds: TypeAlias = NDArray[np.floating[Any]]

SHARES: Mapping[str, float] = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
"""The percentiles of a distribution; between two requests, by linear interpolation."""


class Metric(NamedTuple):
    """A metric, in words.

    title: as it is printed.
    unit: `s` or what it counts; empty for a fraction.
    definition: one sentence.
    """

    title: str
    unit: str
    definition: str


TIMES: Mapping[str, Metric] = {
    "ttft": Metric("TTFT", "s", "first token received - request sent"),
    "tpot": Metric(
        "TPOT",
        "s",
        "(last token - first token) / (output tokens - 1), of requests with two or more",
    ),
    "itl": Metric(
        "ITL",
        "s",
        "time between two answers of a request, each of a token (of a step, if it drafts)",
    ),
    "e2e": Metric("end to end", "s", "last token received - request sent"),
    "queue": Metric("queueing", "s", "start of a request's first step - request sent"),
}
"""Metrics with a distribution."""

NUMBERS: Mapping[str, Metric] = {
    "refused": Metric(
        "refused",
        "requests",
        "requests longer than the engine admits, which no other metric counts",
    ),
    "requests_per_s": Metric("requests", "requests/s", "answered requests / duration"),
    "input_tokens_per_s": Metric("input", "tokens/s", "tokens of all prompts / duration"),
    "output_tokens_per_s": Metric("output", "tokens/s", "generated tokens / duration"),
    "total_tokens_per_s": Metric("total", "tokens/s", "tokens of prompts and generated / duration"),
    "batch": Metric(
        "batch", "sequences", "sequences that decode in a step, the mean of steps that decode"
    ),
    "cache_use": Metric("cache use", "", "taken pages / all pages, the mean over the duration"),
    "cache_peak": Metric("cache peak", "", "taken pages / all pages of a replica, the maximum"),
    "utilisation": Metric(
        "utilisation", "", "time in steps, with the host between them / duration, mean of replicas"
    ),
    "preemptions": Metric("preemptions", "", "times that a request lost its pages"),
    "prefix_hit_rate": Metric(
        "prefix cache", "", "prompt tokens found in the prefix cache / prompt tokens"
    ),
}
"""Metrics that are one number."""


def ttft(served: Served) -> Seconds:
    """Return the time to the first token of each request, in seconds."""
    return (served.first_ps - served.arrival_ps) * PICO


def tpot(served: Served) -> Seconds:
    """Return the time per output token, in seconds, of each request with two tokens or more."""
    several = served.output > 1
    spans = (served.last_ps - served.first_ps)[several]
    return spans * PICO / (served.output[several] - 1)


def e2e(served: Served) -> Seconds:
    """Return the end-to-end latency of each request, in seconds."""
    return (served.last_ps - served.arrival_ps) * PICO


def queue(served: Served) -> Seconds:
    """Return the time of each request before its first step, in seconds."""
    return (served.scheduled_ps - served.arrival_ps) * PICO


OF_REQUESTS: Mapping[str, Callable[[Served], Seconds]] = {
    "ttft": ttft,
    "tpot": tpot,
    "e2e": e2e,
    "queue": queue,
}
"""The times of each request; those between tokens are in a histogram (`Served.gaps`)."""


class Distribution(NamedTuple):
    """The mean, percentiles and the maximum of a time in seconds; NaN where nothing has it."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    maximum: float

    @classmethod
    def of(cls, seconds: Seconds) -> "Distribution":
        """Return the distribution of a column of seconds."""
        if not len(seconds):
            return cls(*[float("nan")] * len(cls._fields))
        quantiles = np.quantile(seconds, list(SHARES.values()))
        found = [seconds.mean(), *quantiles, seconds.max()]
        return cls(*(float(each) for each in found))

    @classmethod
    def of_gaps(cls, served: Served) -> "Distribution":
        """Return the distribution of the times between tokens, from their histogram."""
        values, counts = served.gaps
        whole = int(counts.sum())
        if not whole:
            return cls(*[float("nan")] * len(cls._fields))
        found = weighted_quantiles(values, counts, [*SHARES.values(), 1.0])
        mean = float(values.astype(float) @ counts) / whole
        return cls(*(each * PICO for each in (mean, *found)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingMetrics:
    """The metrics of a simulated server; see `TIMES` and `NUMBERS` for what each is.

    requests: answered.
    duration_s: from the first request that was sent to the last token.
    times: by the keys of `TIMES`.
    numbers: by the keys of `NUMBERS`; `refused` and `preemptions` are counts.
    """

    requests: int
    duration_s: float
    times: Mapping[str, Distribution]
    numbers: Mapping[str, float]

    def facts(self) -> dict[str, Any]:
        """Return the metrics as plain data, in seconds, tokens per second and fractions."""
        return {
            "requests": self.requests,
            "duration_s": self.duration_s,
            **{f"{key}_s": each._asdict() for key, each in self.times.items()},
            **self.numbers,
        }


def measure(served: Served, *, pages: int, replicas: int = 1) -> ServingMetrics:
    """Return the metrics of a simulated server.

    pages: of the cache of a replica, all its ranks together.
    """
    refused = int((served.output == 0).sum())
    served = answered(served)
    start, end = window_ps(served)
    duration = max(end - start, 1) * PICO
    times = {key: Distribution.of(of(served)) for key, of in OF_REQUESTS.items()}
    times["itl"] = Distribution.of_gaps(served)
    prompt, output = int(served.prompt.sum()), int(served.output.sum())
    spans = served.spans
    lengths = (spans.end_ps - spans.start_ps).astype(float)
    decodes = spans.steps * (spans.decodes > 0)
    whole = duration / PICO * replicas
    taken = spans.pages / max(pages, 1)
    numbers = {
        "refused": refused,
        "requests_per_s": len(served.prompt) / duration,
        "input_tokens_per_s": prompt / duration,
        "output_tokens_per_s": output / duration,
        "total_tokens_per_s": (prompt + output) / duration,
        "batch": float(decodes @ spans.decodes) / max(int(decodes.sum()), 1),
        "cache_use": float(lengths @ taken) / whole,
        "cache_peak": float(taken.max(initial=0.0)),
        "utilisation": float(spans.busy_ps.sum()) / whole,
        "preemptions": int(served.preemptions.sum()),
        "prefix_hit_rate": int(served.cached.sum()) / max(prompt, 1),
    }
    return ServingMetrics(
        requests=len(served.prompt),
        duration_s=duration,
        times={key: times[key] for key in TIMES},
        numbers=numbers,
    )


def answered(served: Served) -> Served:
    """Return the requests that were not refused, with what the server did."""
    kept = served.output > 0
    return served if kept.all() else some(served, kept)


def some(served: Served, rows: NDArray[np.bool_]) -> Served:
    """Return the requests of some rows, with what the server did."""
    of_server = ("spans", "gaps", "present_ps", "peak")
    names = (each.name for each in fields(served) if each.name not in of_server)
    return replace(served, **{name: getattr(served, name)[rows] for name in names})


def window_ps(served: Served) -> tuple[int, int]:
    """Return when the first request was sent, and when the last token was received."""
    if not len(served.prompt):
        return 0, 0
    return int(served.arrival_ps.min()), int(served.last_ps.max())


class Goodput(NamedTuple):
    """The requests that meet all targets: their share, and their number per second."""

    share: float
    requests_per_s: float


def goodput(served: Served, targets: Mapping[str, float]) -> Goodput:
    """Return the answered requests that meet all targets, as `vllm bench serve --goodput` does.

    targets: the most seconds of `ttft`, `tpot`, `e2e` or `queue`. A request of one token meets any
        target of `tpot`.

    Raise PlanError for another name.
    """
    served = answered(served)
    met = np.ones(len(served.prompt), dtype=bool)
    for key, most in targets.items():
        if key not in OF_REQUESTS:
            raise PlanError(f"no request has a {key!r}; {nearest(key, OF_REQUESTS)}")
        if key == "tpot":
            met[served.output > 1] &= tpot(served) <= most
        else:
            met &= OF_REQUESTS[key](served) <= most
    start, end = window_ps(served)
    good = int(met.sum())
    return Goodput(good / max(len(met), 1), good / (max(end - start, 1) * PICO))
