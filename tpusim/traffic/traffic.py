"""The traffic of a server: how requests arrive, and how long they are."""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import TrafficError
from tpusim.base.text_files import path_of
from tpusim.traffic.arrivals import (
    PS_PER_S,
    burst_arrivals,
    gamma_arrivals,
)
from tpusim.traffic.checks import LAST_PS, MOST_REQUESTS, MOST_TOKENS, MOST_USERS, number, whole
from tpusim.traffic.lengths import Length, lengths_of
from tpusim.traffic.requests import Column, Requests

Pairs: TypeAlias = "Traffic | Sequence[tuple[int, int]] | None"
"""Lengths of prompts and outputs that belong together: those of a trace, or written."""

Arrivals: TypeAlias = Callable[[int, np.random.Generator], Column]

MOST_SEED = 2**63


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traffic:
    """The requests that reach a server, and what starts each.

    Made by `poisson`, `burst`, `closed_loop` or `read`, or of columns. All but `read` take:

    prompt, output: tokens of each request: a number, or `Lengths`.
    pairs: in place of both, pairs of them: a `Traffic`, whose prefixes are kept, or a list. They
        are drawn in random order, each once before any is drawn again.
    requests: how many.
    seed: of arrivals, prompts and outputs, which are drawn independently of one another: another
        rate leaves the lengths as they are. The same seed gives the same bytes.

    Fields:

    requests: columns of the requests.
    users: users of a closed loop, each of whom sends the next request when the last one is
        answered; 0 for an open loop, whose requests arrive at `arrival_ps`.
    rate: mean requests/s of an open loop; 0 where all arrive at once, and for a closed loop.
    source: where the requests come from, such as `Poisson`.
    """

    requests: Requests
    users: int = 0
    rate: float = 0.0
    source: str = ""

    @property
    def said(self) -> str:
        """The traffic in words: source, rate, requests, and their lengths."""
        if not len(self.requests):
            return "no requests"
        rate = f", {self.rate:.4g} requests/s" if self.rate else ""
        users = f", {self.users:,} users" if self.users else ""
        prompt, output = _said(self.requests.prompt), _said(self.requests.output)
        return (
            f"{self.source or 'columns'}{rate}{users}: {len(self.requests):,} requests of "
            f"{prompt} tokens in, {output} out"
        )

    def __str__(self) -> str:
        return self.said

    @classmethod
    @checked_call
    def poisson(
        cls,
        *,
        rate: float,
        burstiness: float = 1.0,
        requests: int,
        prompt: Length | None = None,
        output: Length | None = None,
        pairs: Pairs = None,
        seed: int = 0,
    ) -> "Traffic":
        """Return requests with exponential or gamma intervals, as `vllm bench serve` sends them.

        rate: mean requests/s, as `--request-rate`.
        burstiness: as `--burstiness`: shape of the gamma distribution of the intervals, whose
            coefficient of variation is `1 / sqrt(burstiness)`: 1 for Poisson arrivals, below 1 for
            bursts, above 1 for more regular arrivals, and `math.inf` for equal intervals.

        Raise TrafficError for a value outside its range.
        """

        def arrivals(count: int, random: np.random.Generator) -> Column:
            return gamma_arrivals(rate, burstiness, count, random)

        drawn = _drawn(requests, prompt, output, pairs, seed, arrivals)
        named = {1: "Poisson", math.inf: "equal intervals"}
        source = named.get(burstiness, f"gamma intervals with burstiness {burstiness:g}")
        return cls(requests=drawn, rate=float(rate), source=source)

    @classmethod
    @checked_call
    def burst(
        cls,
        *,
        requests: int,
        prompt: Length | None = None,
        output: Length | None = None,
        pairs: Pairs = None,
        seed: int = 0,
    ) -> "Traffic":
        """Return requests that all arrive at once. Raise TrafficError for a value out of range."""
        return cls(
            requests=_drawn(requests, prompt, output, pairs, seed, _at_once), source="all at once"
        )

    @classmethod
    @checked_call
    def closed_loop(
        cls,
        *,
        users: int,
        requests: int,
        prompt: Length | None = None,
        output: Length | None = None,
        pairs: Pairs = None,
        seed: int = 0,
    ) -> "Traffic":
        """Return a closed loop: each user waits for an answer before the next request.

        users: as `--max-concurrency` of `vllm bench serve` at an infinite rate.

        Raise TrafficError for a value outside its range.
        """
        many = whole("users", users, MOST_USERS)
        drawn = _drawn(requests, prompt, output, pairs, seed, _at_once)
        return cls(requests=drawn, users=many, source="closed loop")

    @classmethod
    @checked_call
    def read(
        cls,
        path: str | os.PathLike[str],
        *,
        requests: int | None = None,
        window: tuple[float, float] | None = None,
        rate_scale: float = 1.0,
    ) -> "Traffic":
        """Return the requests of a trace; the first one arrives at 0.

        The format is told by the content of the file:

        - Azure 2023 and 2024: `TIMESTAMP,ContextTokens,GeneratedTokens`;
        - BurstGPT, all releases: `Timestamp`, `Request tokens`, `Response tokens`; rows without
          tokens are failures, and left out;
        - BLIS: `arrival_time`, `prefill_tokens`, `decode_tokens`;
        - Splitwise: `arrival_timestamp`, `prompt_size`, `token_size`;
        - plain: `arrival_s`, `prompt`, `output`;
        - Mooncake, JSON Lines: `timestamp` in ms, `input_length`, `output_length`, `hash_ids` of
          blocks of 512 tokens;
        - ShareGPT, JSON, with the tokens of each turn as `tokens`: the first two turns of each
          conversation, all at once.

        path: of the file.
        requests: the first so many; None for all.
        window: start and end in seconds after the first request of the trace, the end excluded.
        rate_scale: factor of the rate; 2 halves all intervals.

        Raise TrafficError for a trace that cannot be read, FileError for a file that cannot.
        """
        from tpusim.traffic.trace_rows import TracePart
        from tpusim.traffic.traces import read_trace

        place = path_of(path, "Traffic.read")
        found, source = read_trace(place, TracePart(requests=requests, window=window))
        span = float(found.arrival_ps[-1]) / PS_PER_S
        rate = (len(found) - 1) / span if span else 0.0
        traffic = cls(requests=found, rate=rate, source=source)
        return traffic if rate_scale == 1 else traffic.scaled(rate_scale)

    def scaled(self, factor: float) -> "Traffic":
        """Return the same requests at another rate.

        factor: of the rate; 2 halves all intervals.

        Raise TrafficError for traffic that has no rate, or a factor outside of 1e-6 to 1e6.
        """
        ratio = number("factor of the rate", factor, 1e-6, 1e6)
        if self.users or not self.requests.arrival_ps.any():
            raise TrafficError(
                f"{self.source or 'this traffic'} has no arrival times to scale; "
                "make other traffic, such as Traffic.poisson(rate=..., pairs=traffic)"
            )
        times = self.requests.arrival_ps / ratio
        if times[-1] > LAST_PS:
            raise TrafficError(
                f"factor of the rate is {ratio:g}, at which the last request arrives after 106 "
                "days; write a larger one"
            )
        moved = replace(self.requests, arrival_ps=np.rint(times).astype(np.int64))
        return replace(self, requests=moved, rate=self.rate * ratio)


def _said(lengths: Column) -> str:
    least, most = int(lengths.min()), int(lengths.max())
    if least == most:
        return f"{least:,}"
    return f"{least:,} to {most:,} (mean {lengths.mean():,.0f})"


def _at_once(count: int, _: np.random.Generator) -> Column:
    return burst_arrivals(count)


def _drawn(
    requests: int,
    prompt: Length | None,
    output: Length | None,
    pairs: Pairs,
    seed: int,
    arrivals: Arrivals,
) -> Requests:
    """Return requests with drawn lengths. Raise TrafficError for lengths given twice or not."""
    count = whole("requests", requests, MOST_REQUESTS)
    seeds = np.random.SeedSequence(whole("seed", seed, MOST_SEED, 0)).spawn(3)
    first, second, third = (np.random.Generator(np.random.PCG64(each)) for each in seeds)
    arrival_ps = arrivals(count, first)
    if pairs is not None:
        if prompt is not None or output is not None:
            raise TrafficError("pairs beside prompt or output; write the pairs, or both others")
        return _paired(_pairs(pairs), arrival_ps, second)
    if prompt is None or output is None:
        missing = "prompt" if prompt is None else "output"
        raise TrafficError(
            f"no {missing}; write tokens, such as {missing}=128, or a distribution, such as "
            f"{missing}=Lengths.uniform(64, 192)"
        )
    return Requests(
        arrival_ps=arrival_ps,
        prompt=lengths_of("prompt", prompt).draw(count, second),
        output=lengths_of("output", output).draw(count, third),
    )


def _pairs(pairs: Any) -> Requests:
    if isinstance(pairs, Traffic) and len(pairs.requests):
        return pairs.requests
    try:
        prompt, output = zip(*pairs, strict=True)
    except (TypeError, ValueError) as error:
        raise TrafficError(
            "pairs is no list of lengths; write (prompt, output) of each, such as [(1024, 128)]"
        ) from error
    return Requests(
        arrival_ps=burst_arrivals(len(prompt)),
        prompt=_column("prompt of a pair", prompt),
        output=_column("output of a pair", output),
    )


def _column(where: str, lengths: Sequence[Any]) -> Column:
    return np.array([whole(where, each, MOST_TOKENS) for each in lengths], dtype=np.int64)


def _paired(known: Requests, arrival_ps: Column, random: np.random.Generator) -> Requests:
    """Return requests with the lengths and prefixes of others, in rounds of random order."""
    count, many = len(arrival_ps), len(known)
    rounds = np.tile(np.arange(many), (-(-count // many), 1))
    order = random.permuted(rounds, axis=1).ravel()[:count]
    prefixes = tuple(known.prefixes[at] for at in order) if known.prefixes else ()
    return Requests(
        arrival_ps=arrival_ps,
        prompt=known.prompt[order],
        output=known.output[order],
        prefixes=prefixes,
        block=known.block,
    )
