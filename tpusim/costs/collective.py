"""Seconds of a collective.

Time is a sum: launch + hops x hop latency + bytes / bandwidth ("How to Scale Your Model", sharding
chapter, with the exact (X-1)/X), and what is added up after it. Only the messages of an all-to-all,
which do not wait for each other, hide part of their latency (`network.exchange`).
"""

from collections.abc import Sequence

from tpusim.costs.links import capacities, ici_rate
from tpusim.costs.route import WHOLE, Route, passes, route
from tpusim.hardware import Chip, Span, Topology
from tpusim.network import CHOICES, paths_seconds
from tpusim.program import CollectiveKind, Number
from tpusim.program.numeric import largest

BEST = "best"
"""Asks for the algorithm that takes the least time, whatever the compiler would pick."""

ADD_FLOPS = 2
"""Vector operations a byte to add bf16 elements: unpack two, add, pack."""


def best_route(
    kind: CollectiveKind, spans: Sequence[Span], topology: Topology, nbytes: float, chip: Chip
) -> Route:
    """The route of least time for so many bytes."""
    routes = [route(kind, spans, topology, how) for how in CHOICES[kind]]
    return min(routes, key=lambda path: route_seconds(path, nbytes, chip))


def delay_seconds(path: Route, chip: Chip) -> float:
    """Seconds before bytes count: the launch, and the hops' latency."""
    return path.launched * chip.costs.collective_launch + path.hops * chip.costs.hop_latency


def dcn_delay_seconds(kind: CollectiveKind, path: Route, chip: Chip) -> float:
    """Seconds before bytes count across slices: the launch, and a latency a pass."""
    return path.launched * (chip.costs.collective_launch + passes(kind) * chip.costs.dcn_latency)


def path_seconds(path: Route, nbytes: Number, chip: Chip) -> Number:
    """Seconds that the transfers take at least, however free the links.

    Beyond the delay: the other paths, and what is added beside them on the vector unit.
    """
    beside = 0.0 if path.after else _vector_seconds(path, nbytes, chip)
    if not path.paths:
        return beside
    hop_s = chip.costs.hop_latency
    through = paths_seconds(path.paths, path.power, nbytes, ici_rate(chip), hop_s)
    return largest(beside, through - path.hops * hop_s)


def adding_seconds(path: Route, nbytes: Number, chip: Chip) -> Number:
    """Seconds of the additions that come after the transfers; 0 where they run beside them.

    The compiler's N-D all-reduce adds what a phase brought when the phase is over: so a 16x16
    slice of v6e needs 4.7 ms for 606 MB, of which the links take 3.4 (measured: 5.1; tpu-recipes,
    trillium collectives). One ring adds on the way (a reduce-scatter on v2 reaches 0.96 of its
    links' rate).
    """
    if not path.after or not path.added:
        return 0.0 * nbytes
    hbm = chip.hbm_bandwidth / chip.devices * chip.costs.hbm_efficiency
    return largest(path.summed * path.added * nbytes / hbm, _vector_seconds(path, nbytes, chip))


def _vector_seconds(path: Route, nbytes: Number, chip: Chip) -> Number:
    """Seconds of the additions on the vector unit of one device."""
    rate = chip.vpu_flops / chip.devices * chip.costs.vector_efficiency
    return ADD_FLOPS * path.added * nbytes / rate


def link_seconds(path: Route, nbytes: Number, chip: Chip) -> Number:
    """Seconds of the bytes alone on the links, without delay and without additions after them."""
    links = capacities(chip)
    slowest = max((weight / WHOLE / links[name] for name, weight in path.uses), default=0.0)
    return largest(nbytes * (path.share * slowest), path_seconds(path, nbytes, chip))


def route_seconds(path: Route, nbytes: Number, chip: Chip) -> Number:
    """Seconds of a collective alone within a slice: delay, links, and the additions after them."""
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
    """Seconds of a collective of `nbytes` (the full tensor on one device) alone on the torus.

    The same equations as the engine's tasks, for arrays of bytes too (`best` takes one number).
    Raises PlanError for an algorithm that the kind cannot use.
    """
    if algorithm == BEST:
        return route_seconds(best_route(kind, spans, topology, float(nbytes), chip), nbytes, chip)
    return route_seconds(route(kind, spans, topology, algorithm), nbytes, chip)
