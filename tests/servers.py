"""Costs, traffic and random servers for tests of the server."""

import random
from dataclasses import replace
from typing import Any

import numpy as np

from tpusim.server import DecodePool, Policy, Served, StepLoad
from tpusim.traffic import Requests, Traffic

MS = 10**9


class AffineCosts:
    """Steps whose time is affine in their load; `loads` has that of each step or run."""

    def __init__(
        self,
        step: int = 2 * MS,
        decode: int = 10_000_000,
        key: int = 2_000,
        prompt: int = 8_000_000,
        pair: int = 100,
    ) -> None:
        self.step, self.decode, self.key, self.prompt, self.pair = step, decode, key, prompt, pair
        self.loads: list[StepLoad] = []

    def step_ps(self, load: StepLoad) -> int:
        self.loads.append(load)
        decodes = self.decode * load.decodes + self.key * load.context
        return self.step + decodes + self.prompt * load.prefills + self.pair * load.prefill_pairs

    def decode_ps(self, decodes: int, context: int, steps: int, growth: int) -> int:
        keys = steps * context + growth * steps * (steps - 1) // 2
        return steps * (self.step + self.decode * decodes) + self.key * keys


def traffic(
    prompt: list[int],
    output: list[int],
    arrival: list[int] | None = None,
    *,
    users: int = 0,
    prefixes: tuple[tuple[int, ...], ...] = (),
    block: int = 0,
) -> Traffic:
    """Return traffic of given requests, which all arrive at 0 if no times are given."""
    return Traffic(
        requests=Requests(
            arrival_ps=np.array(arrival or [0] * len(prompt), np.int64),
            prompt=np.array(prompt, np.int64),
            output=np.array(output, np.int64),
            prefixes=prefixes,
            block=block,
        ),
        users=users,
    )


def poisson(count: int, rate: float, seed: int = 0, prompt: int = 512, output: int = 64) -> Traffic:
    """Return Poisson traffic with uniform lengths, `rate` a second."""
    draw = np.random.default_rng(seed)
    return Traffic(
        requests=Requests(
            arrival_ps=np.cumsum(draw.exponential(1e12 / rate, count)).astype(np.int64),
            prompt=draw.integers(1, 2 * prompt, count),
            output=draw.integers(1, 2 * output, count),
        )
    )


def random_server(seed: int) -> tuple[Traffic, Policy, dict[str, Any]]:
    """Return traffic, policy and further arguments of a server, often short of pages."""
    draw = random.Random(seed)
    count = draw.choice([5, 40, 150])
    prompt, output = draw.choice([20, 300]), draw.choice([5, 60])
    until = count * draw.choice([1, 10, 100, 1000]) * MS // 10
    unit = draw.choice([1, MS])  # whole milliseconds bring ties
    arrival = sorted(draw.randrange(until) // unit * unit for _ in range(count))
    prompts = [draw.randrange(1, 2 * prompt) for _ in range(count)]
    outputs = [draw.randrange(1, 2 * output) for _ in range(count)]
    users = draw.choice([0, 0, 1, 4, 20])
    prefixes: tuple[tuple[int, ...], ...] = ()
    block, page = 0, draw.choice([1, 4, 16, 128])
    if draw.random() < 0.4:
        block, page = draw.choice([4, 16, 32]), draw.choice([4, 8, 16])
        prefixes = tuple((draw.randrange(1, 4), *range(each // block)) for each in prompts)
    mixed = draw.random() < 0.6
    drafted = draw.choice([0, 0, 0, 1, 3])
    longest = max(map(sum, zip(prompts, outputs, strict=True))) + drafted
    policy = Policy(
        max_num_seqs=draw.choice([1, 3, 16, 256]),
        max_num_batched_tokens=draw.choice([8, 64, 2048]),
        ranks=draw.choice([1, 1, 1, 2, 4]),
        page_size=page,
        pages=-(-longest // page) * draw.choice([1, 1, 2, 10]),
        mixed=mixed,
        priority="decode" if mixed or draw.random() < 0.3 else "prefill",
        reserve=draw.choice([None, None, 0.5, 0.1]),
        prefix_cache=bool(prefixes),
        host_ps=draw.choice([0, 3 * MS]),
        schedule_ps=draw.choice([0, 0, 4 * MS]),
        sequence_ps=draw.choice([0, 0, 30_100]),
        request_ps=draw.choice([0, MS]),
        drafted=drafted,
        accepted=float(draw.choice([1, 1 + drafted])),
    )
    more: dict[str, Any] = {
        "replicas": draw.choice([1, 1, 2, 3]),
        "router": draw.choice(["round-robin", "least-loaded", *["prefix"] * bool(prefixes)]),
        "ready_ps": draw.choice([0, 0, 10 * MS]),
    }
    if draw.random() < 0.3:
        more["decode"] = DecodePool(
            policy=policy,
            costs=AffineCosts(),
            transfer_ps=lambda tokens: tokens * 1_000_000,
            replicas=draw.choice([1, 2]),
        )
    if draw.random() < 0.4:
        more["outages"] = ((0, 20 * MS + draw.choice([0, 7]), 50 * MS), (0, 90 * MS, 100 * MS))
    policy = replace(policy, hold_ps=draw.choice([0, 0, 40 * MS, 10**13]))
    times = None if users else arrival
    made = traffic(prompts, outputs, times, users=users, prefixes=prefixes, block=block)
    return made, policy, more


COLUMNS = (
    *("arrival_ps", "scheduled_ps", "first_ps", "last_ps"),
    *("prompt", "output", "cached", "preemptions"),
)


def rows(served: Served) -> list[tuple[int, ...]]:
    """Return what became of each request."""
    return list(zip(*(getattr(served, name).tolist() for name in COLUMNS), strict=True))
