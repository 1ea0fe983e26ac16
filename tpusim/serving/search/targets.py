"""What a user demands of a server: targets of its latency and throughput."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import PlanError
from tpusim.base.units import format_seconds
from tpusim.base.value_checks import is_number
from tpusim.serving.metrics import NUMBERS, SHARES, TIMES, ServingMetrics
from tpusim.serving.result import number

OUTPUT = "output_tokens_per_s"
MEAN = "mean"

Seconds = NDArray[np.float64]


@checked_call
@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """The most that each latency of a server may be, and the least throughput; None for no target.

    ttft_p50_s, ttft_p99_s: seconds to the first token, by percentile.
    tpot_s, tpot_p99_s: seconds per output token: the mean of the requests, and the percentile.
    e2e_p50_s, e2e_p99_s: seconds from the request to its last token.
    output_tokens_per_s: tokens that are generated in a second by all replicas.

    A server that requests saturate meets no targets.

    Raise PlanError without a target, and for one that is no number above 0.
    """

    ttft_p50_s: float | None = None
    ttft_p99_s: float | None = None
    tpot_s: float | None = None
    tpot_p99_s: float | None = None
    e2e_p50_s: float | None = None
    e2e_p99_s: float | None = None
    output_tokens_per_s: float | None = None

    def __post_init__(self) -> None:
        for key, value in self.given().items():
            if not is_number(value) or not 0 < value < float("inf"):
                raise PlanError(f"targets.{key} is {value!r}; write a number above 0")
        if not self.given():
            raise PlanError("no target is given; write one, such as ttft_p99_s = 2.0")

    def given(self) -> dict[str, Any]:
        """Return the targets that are not None, by name."""
        pairs = ((each.name, getattr(self, each.name)) for each in fields(self))
        return {name: value for name, value in pairs if value is not None}

    def strain(self, values: Mapping[str, float]) -> float:
        """Return how much of its targets a server takes: above 1 it misses one.

        values: by name; lower bounds of latencies, and an upper one of the throughput, give a lower
            bound.
        """
        return float(max(self.strains(values).values()))

    def strains(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return how much of each target a server takes, by name; see `strain`."""
        return {
            name: target / max(values[name], 1e-300) if name == OUTPUT else values[name] / target
            for name, target in self.given().items()
        }

    def missed(self, values: Mapping[str, float]) -> dict[str, str]:
        """Return each target that values miss, in words by name."""
        found = {}
        for name, target in self.given().items():
            value = values[name]
            if name == OUTPUT and value < target:
                found[name] = f"{shown(name, value)} of at least {shown(name, target)}"
            elif name != OUTPUT and not value <= target:
                words = f"{shown(name, value)} of at most {shown(name, target)}"
                found[name] = f"{title(name)} {words}"
        return found

    def __str__(self) -> str:
        return ", ".join(
            f"at least {shown(name, target)}"
            if name == OUTPUT
            else f"{title(name)} at most {shown(name, target)}"
            for name, target in self.given().items()
        )


LATENCIES = tuple(each.name for each in fields(Targets) if each.name != OUTPUT)
"""The names of targets that are latencies, which objectives of a search may be too."""


def parts_of(name: str) -> tuple[str, str]:
    """Return the key of `TIMES` and the percentile (or `mean`) of a latency.

    >>> parts_of("ttft_p99_s"), parts_of("tpot_s")
    (('ttft', 'p99'), ('tpot', 'mean'))
    """
    key, _, share = name.removesuffix("_s").partition("_")
    return key, share or MEAN


def title(name: str) -> str:
    """Return a target in words.

    >>> title("ttft_p99_s"), title("tpot_s")
    ('TTFT p99', 'TPOT')
    """
    if name == OUTPUT:
        return f"{NUMBERS[OUTPUT].title} {NUMBERS[OUTPUT].unit}"
    key, share = parts_of(name)
    return TIMES[key].title + (f" {share}" if share != MEAN else "")


def shown(name: str, value: float) -> str:
    """Return the value of a target with its unit."""
    return f"{number(value)} tokens/s out" if name == OUTPUT else format_seconds(value)


def latency(name: str, times: Mapping[str, Seconds]) -> float:
    """Return a latency of the requests of which `times` has the seconds, by key of `TIMES`.

    It grows with each of them, so that lower bounds of the requests give one of the latency.
    """
    key, share = parts_of(name)
    seconds = times[key]
    if not len(seconds):
        return 0.0
    return float(seconds.mean() if share == MEAN else np.quantile(seconds, SHARES[share]))


def metric_values(metrics: ServingMetrics) -> Iterator[tuple[str, float]]:
    """Yield what targets are of, by name."""
    for name in LATENCIES:
        key, share = parts_of(name)
        yield name, getattr(metrics.times[key], share)
    yield OUTPUT, metrics.numbers[OUTPUT]
