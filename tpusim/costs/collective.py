"""Seconds of a collective.

Time is a sum: launch + hops x hop latency + bytes / bandwidth ("How to Scale Your Model", sharding
chapter, with the exact (X-1)/X), and the additions that come after it. Only the messages of an
all-to-all, which do not wait for each other, hide part of their latency (`network.all_to_all`).
"""

from collections.abc import Mapping, Sequence

from tpusim.costs.compute import hbm_seconds, vector_seconds
from tpusim.costs.links import DIE_LINKS, ICI, capacities, ici_rate
from tpusim.costs.route import BUSIEST_WEIGHT, CollectiveRoute, passes, route
from tpusim.hardware import Chip, Span, Topology
from tpusim.network import algorithms_for, paths_seconds
from tpusim.program import CollectiveKind, Number, largest

BEST_ALGORITHM = "best"
"""Requests the algorithm that takes the least time, whatever the compiler would pick."""

ADD_FLOPS = 2
"""Vector operations per byte to add bf16 elements: unpack two, add, pack."""


def best_route(
    kind: CollectiveKind, spans: Sequence[Span], topology: Topology, nbytes: float, chip: Chip
) -> CollectiveRoute:
    """Return the route of least time for so many bytes."""
    routes = [route(kind, spans, topology, name) for name in best_candidates(kind)]
    return routes[fastest_route(routes, nbytes, chip)]


def best_candidates(kind: CollectiveKind) -> tuple[str, ...]:
    """Return the algorithms of which `best` takes the fastest."""
    return tuple(each.name for each in algorithms_for(kind) if each.in_best)


def fastest_route(routes: Sequence[CollectiveRoute], nbytes: float, chip: Chip) -> int:
    """Return the index of the first route of least time for so many bytes."""
    seconds = [route_seconds(path, nbytes, chip) for path in routes]
    return seconds.index(min(seconds))


def delay_seconds(path: CollectiveRoute, chip: Chip) -> float:
    """Return the seconds before bytes count: the launch and the latency of the hops.

    Between the devices of a chip the launch is `die_launch`: no network has to be set up.
    """
    costs, launch = chip.costs, chip.costs.collective_launch
    if costs.die_launch is not None and {name for name, _ in path.links} <= set(DIE_LINKS):
        launch = costs.die_launch
    delay = path.launched * launch + path.hops * costs.hop_latency
    return delay * costs.time_of(path.kind)


def dcn_delay_seconds(kind: CollectiveKind, path: CollectiveRoute, chip: Chip) -> float:
    """Return the seconds before bytes count across slices: the launch and one latency per pass."""
    return path.launched * (chip.costs.collective_launch + passes(kind) * chip.costs.dcn_latency)


def path_seconds(path: CollectiveRoute, nbytes: Number, chip: Chip) -> Number:
    """Return the least seconds that the transfers take beyond the delay, on free links.

    They are bounded by the other paths, and by what the vector unit adds beside them.
    """
    factor = chip.costs.time_of(path.kind)
    beside = 0.0 if path.adds_after else _vector_seconds(path, nbytes, chip)
    if not path.paths:
        return beside * factor
    hop_s = chip.costs.hop_latency
    rate = ici_rate(chip)
    if chip.ici_shares:
        rate = _shared_rate(path.uses, capacities(chip), rate)
    through = paths_seconds(path.paths, path.power, nbytes, rate, hop_s)
    return largest(beside, through - path.hops * hop_s) * factor


def _shared_rate(
    uses: tuple[tuple[str, int], ...], rates: Mapping[str, float], rate: float
) -> float:
    """Return the rate at which paths run where dimensions differ: as the slowest link lets them.

    rate: of a link in a dimension that is as all are.
    """
    on_ici = tuple(use for use in uses if use[0].startswith(ICI))
    alike = max((weight for _, weight in on_ici), default=0) / BUSIEST_WEIGHT
    return alike / _slowest_link(on_ici, rates) if alike else rate


def adding_seconds(path: CollectiveRoute, nbytes: Number, chip: Chip) -> Number:
    """Return the seconds of the additions after the transfers; 0 if they run beside them.

    The compiler's N-D all-reduce adds what a phase brought when the phase is over: so a 16x16 slice
    of v6e needs 4.7 ms for 606 MB, of which the links take 3.4 (measured: 5.1; tpu-recipes,
    trillium collectives). One ring adds on the way (a reduce-scatter on v2 reaches 0.96 of its
    links' rate).
    """
    if not path.adds_after or not path.added_bytes:
        return 0.0 * nbytes
    memory = hbm_seconds(path.added_hbm_bytes * path.added_bytes * nbytes, 0, chip.device)
    adding = largest(memory, _vector_seconds(path, nbytes, chip))
    return adding * chip.costs.time_of(path.kind)


def _vector_seconds(path: CollectiveRoute, nbytes: Number, chip: Chip) -> Number:
    """Return the seconds of the additions on the vector unit of one device."""
    return vector_seconds(ADD_FLOPS * path.added_bytes * nbytes, chip.device)


def link_seconds(path: CollectiveRoute, nbytes: Number, chip: Chip) -> Number:
    """Return the seconds of the bytes on the links, without the delay and additions after them."""
    slowest = _slowest_link(path.uses, capacities(chip))
    factor = chip.costs.time_of(path.kind)
    return largest(nbytes * (path.share * slowest * factor), path_seconds(path, nbytes, chip))


def _slowest_link(uses: tuple[tuple[str, int], ...], rates: Mapping[str, float]) -> float:
    """Return the seconds of a byte of the busiest link on the slowest link."""
    return max((weight / BUSIEST_WEIGHT / rates[name] for name, weight in uses), default=0.0)


def route_seconds(path: CollectiveRoute, nbytes: Number, chip: Chip) -> Number:
    """Return the seconds of a collective alone within a slice: delay, links and additions."""
    moving = link_seconds(path, nbytes, chip) + adding_seconds(path, nbytes, chip)
    return delay_seconds(path, chip) + moving


def collective_seconds(
    kind: CollectiveKind,
    nbytes: Number,
    spans: Sequence[Span],
    chip: Chip,
    topology: Topology,
    algorithm: str = "",
) -> Number:
    """Return the seconds of a collective alone on the torus.

    nbytes: bytes of the full tensor on one device; may be an array, except for `best`.
    algorithm: see `route`; `best` for the fastest.

    The equations are those of the engine's tasks.

    Raise PlanError if the algorithm cannot carry out the kind.
    """
    if algorithm == BEST_ALGORITHM:
        return route_seconds(best_route(kind, spans, topology, float(nbytes), chip), nbytes, chip)
    return route_seconds(route(kind, spans, topology, algorithm), nbytes, chip)
