"""Simulations that servers share which differ only in limits that none of them reaches."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from tpusim.server import Served
from tpusim.server.checks import check_server
from tpusim.server.peak_use import PeakUse
from tpusim.serving.configuration import Configuration
from tpusim.serving.engines.buckets import Sizes
from tpusim.serving.serve import Server
from tpusim.traffic import Traffic

Found = TypeVar("Found")


@dataclass(slots=True)
class KnownRuns:
    """What was found in simulations of one traffic, or of its first requests.

    A scheduler compares what it asks for with three limits: sequences, tokens of a step, and pages.
    Where all that it asked for is below a limit (`PeakUse`), each comparison has the same answer
    with any other limit above that. Two such servers run the same steps, which take as long if they
    are padded to the same buckets.

    runs: server, peak and finding of each simulation, by all else that it depends on.
    """

    runs: defaultdict[Hashable, list[tuple[Server, PeakUse, Any]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def of(
        self,
        chosen: Configuration,
        server: Server,
        traffic: Traffic,
        find: Callable[[Served], Found],
    ) -> Found:
        """Simulate a traffic, and return what is found in it; without a simulation if it is known.

        find: of the requests' times and tokens, and of nothing that has to do with limits.

        Raise ServerError as `serve` does.
        """
        check_server(traffic.requests, [(server.policy, chosen.replicas, chosen.router)])
        alike = self.runs[(find, len(traffic.requests), *_others(chosen, server))]
        for other, peak, known in alike:
            if same_run(server, other, peak):
                return known  # type: ignore[no-any-return]
        served = chosen.served(server, traffic)
        found = find(served)
        alike.append((server, served.peak, found))
        return found


def _others(chosen: Configuration, server: Server) -> tuple[Hashable, ...]:
    """Return all that the simulation of a server depends on, but for limits and buckets."""
    policy = replace(server.policy, max_num_seqs=1, max_num_batched_tokens=1, pages=1)
    cache = server.steps.buckets.cache
    return chosen.step_key, policy, cache, chosen.replicas, chosen.router, chosen.ready_s


def same_run(one: Server, other: Server, peak: PeakUse) -> bool:
    """Return whether two servers that differ in limits and buckets alone do the same.

    peak: what one of them asked of its limits.
    """
    each = peak.sequences * (1 + one.policy.drafted)
    tokens = max(peak.tokens, each)
    limits = (
        (one.policy.slots, other.policy.slots, peak.sequences),
        (one.policy.max_num_batched_tokens, other.policy.max_num_batched_tokens, tokens),
        (one.policy.pages, other.policy.pages, peak.pages),
    )
    if any(mine != its and min(mine, its) <= most for mine, its, most in limits):
        return False
    mine, its = one.steps.buckets, other.steps.buckets
    sizes = (
        (mine.tokens, its.tokens, tokens),
        (mine.decodes, its.decodes, peak.sequences),
        (mine.rows, its.rows, peak.sequences),
    )
    return all(_up_to(a, most) == _up_to(b, most) for a, b, most in sizes)


def _up_to(sizes: Sizes, most: int) -> Sizes:
    """Return the sizes that loads up to a largest one are padded to."""
    return sizes[: bisect_left(sizes, most) + 1]
