"""Simulations that servers share which differ only in limits that none of them reaches."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from tpusim.server import Begun, Served, Watch
from tpusim.server.checks import check_server
from tpusim.server.peak_use import PeakUse
from tpusim.serving.configuration import Configuration
from tpusim.serving.engines.buckets import Sizes
from tpusim.serving.metrics import measure
from tpusim.serving.saturation import Load, load_of
from tpusim.serving.search.server_bounds import begun_bounds
from tpusim.serving.search.targets import Seconds, metric_values
from tpusim.serving.serve import Server
from tpusim.traffic import Traffic

Found: TypeAlias = tuple[dict[str, float], Load]
"""Metrics by the names of `Targets`, and the load."""


class KnownRun(NamedTuple):
    """A simulation of a traffic, or of its beginning.

    server: that was simulated.
    peak: the most that it asked of its limits.
    begun: bounds of the first requests, where it was ended.
    found: what was found in all requests; None where it was ended.
    """

    server: Server
    peak: PeakUse
    begun: Mapping[str, Seconds]
    found: Found | None


@dataclass(frozen=True, slots=True)
class KnownRuns:
    """The simulations of a traffic.

    A scheduler compares what it asks for with three limits: sequences, tokens of a step, and pages.
    Where all that it asked for is below a limit (`PeakUse`), each comparison has the same answer
    with any other limit above that. Two such servers run the same steps, which take as long if they
    are padded to the same buckets.

    counts: numbers of sent requests after which a simulation may be ended.
    """

    traffic: Traffic
    counts: Sequence[int]
    _runs: defaultdict[Hashable, list[KnownRun]] = field(default_factory=lambda: defaultdict(list))

    def of(
        self, chosen: Configuration, server: Server, ends: Callable[[Mapping[str, Seconds]], bool]
    ) -> Found | None:
        """Return what is found in the requests; None if the simulation is ended.

        A simulation that is known is not repeated.

        ends: is asked with bounds of the first requests whether the simulation ends.

        Raise ServerError as `serve` does.
        """
        check_server(self.traffic.requests, [(server.policy, chosen.replicas, chosen.router)])
        key = _others(chosen, server)
        alike: list[KnownRun] = []
        others: list[KnownRun] = []
        for run in self._runs[key]:
            (alike if same_run(server, run.server, run.peak) else others).append(run)
        for run in alike:
            if run.found is not None:
                return run.found
        if any(ends(run.begun) for run in alike):
            return None
        run = self._new(chosen, server, ends)
        self._runs[key] = [*others, run]
        return run.found

    def _new(
        self, chosen: Configuration, server: Server, ends: Callable[[Mapping[str, Seconds]], bool]
    ) -> KnownRun:
        ended: dict[str, Seconds] = {}

        def look(begun: Begun) -> bool:
            bounds = begun_bounds(begun, self.traffic, server.policy)
            if ends(bounds):
                ended.update(bounds)
            return bool(ended)

        served = chosen.served(server, self.traffic, Watch(self.counts, look))
        return KnownRun(
            server, served.peak, ended, None if ended else found_in(served, self.traffic)
        )


def found_in(served: Served, traffic: Traffic) -> Found:
    """Return the metrics and the load of a simulation, none of which has to do with limits."""
    values = dict(metric_values(measure(served, pages=1)))
    return values, load_of(served, traffic.rate, traffic.users)


def _others(chosen: Configuration, server: Server) -> tuple[Hashable, ...]:
    """Return all that the simulation of a server depends on, but for limits and buckets."""
    policy = replace(server.policy, max_num_seqs=1, max_num_batched_tokens=1, pages=1)
    cache = chosen.plan.kv_dtype, server.steps.buckets.cache
    return chosen.step_key, policy, *cache, chosen.replicas, chosen.router, chosen.ready_s


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
