"""Lower bounds of the latencies of a server, and of its work, before it is simulated.

A step takes no less than the least step of its bucket (`StepTable.least_steps`). Over buckets, a
line `start + slope x tokens` with neither below 0 that no bucket is below bounds steps of any load.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tpusim.server import Begun, Policy, StepLoad
from tpusim.server.checks import refused
from tpusim.serving.metrics import PICO
from tpusim.serving.search.targets import LATENCIES, OUTPUT, Seconds, latency
from tpusim.serving.serve import Server
from tpusim.traffic import Traffic
from tpusim.traffic.requests import Column

SLACK = 0.1
"""The fraction by which requests have to outrun what a server can answer to be left out: the test
of saturation looks at the second half of the requests, whose lengths differ from those of all."""

LEAST_REQUESTS = 64
"""Requests below which the test of saturation cannot tell."""


@dataclass(frozen=True, slots=True)
class ServerBounds:
    """What no simulation of a server is below.

    times: seconds of each answered request, by key of `TIMES`; of `tpot` those with two tokens or
        more.
    sent_s: after the first request, of each answered one; 0 in a closed loop.
    users: of a closed loop, else 0.
    work_s: of all steps.
    saturated: requests outrun the server.
    output: tokens that are generated.
    """

    times: Mapping[str, Seconds]
    sent_s: Seconds
    users: int
    work_s: float
    saturated: bool
    output: int

    @property
    def duration_s(self) -> float:
        """From the first request to the last token.

        Each request is answered by then, and each user waits for one answer after the other.
        """
        e2e = self.times["e2e"]
        waited = float(e2e.sum()) / self.users if self.users else 0.0
        return max(float((self.sent_s + e2e).max(initial=PICO)), waited, self.work_s)

    def values(self) -> dict[str, float]:
        """Return bounds of what targets are of: lower ones, and an upper one of the throughput."""
        found = {name: latency(name, self.times) for name in LATENCIES}
        return {**found, OUTPUT: self.output / self.duration_s}

    def raised(self, times: Mapping[str, Seconds]) -> "ServerBounds":
        """Return the bounds with other ones of the first requests where those are higher."""
        higher = {}
        for key, own in self.times.items():
            first = len(times[key])
            higher[key] = np.concatenate([np.maximum(own[:first], times[key]), own[first:]])
        return replace(self, times=higher)


def server_bounds(server: Server, traffic: Traffic, replicas: int) -> ServerBounds:
    """Return the bounds of a server with so many replicas."""
    policy, steps = server.policy, server.steps
    taken = ~refused(traffic.requests, policy)
    prompt, output = traffic.requests.prompt[taken], traffic.requests.output[taken]
    known = policy.prefix_cache and bool(traffic.requests.prefixes)
    computed = np.ones_like(prompt) if known else prompt
    points = steps.least_steps()
    lines = list(_lines(points)) if steps.buckets.tokens else [(min(ps for _, ps in points), 0.0)]
    chunks = -(-computed // policy.max_num_batched_tokens)
    spans = [start * chunks + slope * computed / policy.ranks for start, slope in lines]
    ttft = np.max(spans, axis=0) + policy.host_ps * chunks + policy.request_ps
    between, least = policy.host(1)
    step = min(ps for _, ps in points) + between
    step += _attention_ps(server, int(prompt.min())) if len(prompt) else 0
    step = max(step, least)
    decodes = np.maximum(_decode_steps(output, policy.accepted), 0.0)
    several = output > 1
    times = {
        "ttft": ttft * PICO,
        "tpot": (step * decodes)[several] * PICO / (output[several] - 1),
        "e2e": (ttft + step * decodes) * PICO,
    }
    work = _work_ps(server, lines, float(computed.sum()), float((output - 1).sum()))
    arrival = traffic.requests.arrival_ps[taken]
    sent = arrival - arrival[:1].sum()
    full = policy.max_num_seqs * policy.ranks * replicas
    return ServerBounds(
        times=times,
        sent_s=np.zeros(len(sent)) if traffic.users else sent * PICO,
        users=traffic.users,
        work_s=work / replicas * PICO,
        saturated=_outrun(traffic, work / replicas, full),
        output=int(output.sum()),
    )


def _attention_ps(server: Server, keys: int) -> int:
    """Return what attention to the keys of one sequence adds to a step."""
    tokens = server.policy.drafted + 1
    with_keys = server.steps.step_ps(StepLoad(tokens, keys))
    return with_keys - server.steps.step_ps(StepLoad(tokens, 0))


def _decode_steps(output: Column, accepted: float) -> Seconds:
    """Return the fewest steps from the first token of each request to its last."""
    steps: Seconds = (output - 1) / accepted
    return steps if accepted == 1 else steps - 1


def _lines(points: Sequence[tuple[int, int]]) -> Iterator[tuple[float, float]]:
    """Yield start and slope of lines that no point is below: through two points, or through 0."""
    tokens, ps = np.array(points, dtype=float).T
    slopes = [0.0, *(np.diff(ps) / np.maximum(np.diff(tokens), 1.0))]
    for slope in slopes:
        start = float((ps - slope * tokens).min())
        if slope >= 0 and start >= 0:
            yield start, float(slope)
    yield 0.0, float((ps / tokens).min())


def _work_ps(
    server: Server, lines: Sequence[tuple[float, float]], prompts: float, decoded: float
) -> float:
    """Return the picoseconds that all steps of a server take at least, on one replica."""
    policy = server.policy
    tokens = prompts + decoded * (policy.drafted + 1) / policy.accepted
    most = max(policy.max_num_batched_tokens, policy.max_num_seqs * (policy.drafted + 1))
    steps = max(
        decoded / policy.accepted / (policy.max_num_seqs * policy.ranks),
        tokens / (most * policy.ranks),
    )
    each = max(start * steps + slope * tokens / policy.ranks for start, slope in lines)
    return each + policy.host_ps * steps


def _outrun(traffic: Traffic, work_ps: float, full: int) -> bool:
    """Return whether requests outrun a server so far that their queue is seen to grow.

    full: sequences that run at a time; as many are answered late without a queue.
    """
    count = len(traffic.requests)
    if traffic.users or count < LEAST_REQUESTS or not traffic.rate:
        return False
    answered = count / max(work_ps * PICO, PICO)
    return answered < traffic.rate * (1 - SLACK - 2 * full / count)


def begun_bounds(begun: Begun, traffic: Traffic, policy: Policy) -> dict[str, Seconds]:
    """Return bounds of the times of the first requests of a traffic, of a part of its simulation.

    What is not received yet takes at least until now.
    """
    count = len(begun.arrival_ps)
    taken = ~refused(traffic.requests, policy)[:count]
    output = traffic.requests.output[:count][taken]
    arrival, first, last = (each[taken] for each in begun[1:4])
    first, last = (np.where(each < 0, begun.now_ps, each) for each in (first, last))
    several = output > 1
    found: dict[str, Seconds] = {"tpot": (last - first)[several] * PICO / (output[several] - 1)}
    for key, received in (("ttft", first), ("e2e", last)):
        found[key] = (received - arrival).astype(np.float64) * PICO
    return found
