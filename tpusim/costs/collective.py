"""Bytes, links and seconds of a collective.

Time is a sum: launch + hops x hop latency + bytes / bandwidth ("How to Scale Your Model", sharding
chapter, with the exact (X-1)/X). Everything is linear in the tensor's bytes, so a collective over a
group is a `Route`, worked out once, and its seconds are one multiplication away.

Where a chip is two devices (v2, v3, 7x), they share its links: each has half of every ICI, DCN and
PCIe link. A group that both belong to moves each byte to the chip once and then across the die, so
each device carries half of it over ICI. All-to-alls carry each device's own bytes either way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from tpusim.costs.algorithm import Algorithm, algorithm
from tpusim.costs.tasks import HBM
from tpusim.costs.torus import Group, Way, group, one_ring
from tpusim.hardware import Chip, Span, Topology
from tpusim.hardware.topology import DIMENSION_NAMES
from tpusim.program import CollectiveKind, Number

DCN = "dcn"
PCIE = "pcie"
DIE_LINKS = ("die+", "die-")

HBM_BYTES = {
    CollectiveKind.ALL_GATHER: 2.0,
    CollectiveKind.REDUCE_SCATTER: 3.0,
    CollectiveKind.ALL_REDUCE: 2.5,
    CollectiveKind.ALL_TO_ALL: 2.0,
    CollectiveKind.PERMUTE: 2.0,
}
"""HBM bytes per byte received: written and read again; a reduction also reads its own operand."""

TWIST_GAIN = {1: 1.745, 2: 1.391}
"""All-to-all gain of a twisted torus with that number of long dimensions, over the regular one.

Shortest paths split evenly on 4x4x8 and 4x8x8; the Cloud TPU v4 documentation has 1.70 and 1.40,
arXiv:2304.01433 measures 1.63 and 1.31.
"""


@dataclass(frozen=True, slots=True)
class Route:
    """A collective over a group, by byte of its tensor on one device.

    share: bytes on each link that has weight 1. uses: link class and weight. hops: links crossed
    one after another. launched: 0 for a group of one, which does nothing.
    """

    share: float
    uses: tuple[tuple[str, int], ...]
    hops: float
    launched: bool = True


NOTHING = Route(share=0.0, uses=(), hops=0.0, launched=False)


def capacities(chip: Chip) -> dict[str, float]:
    """Bytes a second that one device has of each link class, one way."""
    costs = chip.costs
    ici = chip.ici_bandwidth * costs.ici_efficiency / chip.devices
    dimensions = DIMENSION_NAMES[: chip.ici_dimensions]
    links = {f"ici:{name}{way}": ici for name in dimensions for way in "+-"}
    if chip.devices > 1:
        links |= dict.fromkeys(DIE_LINKS, chip.die_to_die_bandwidth)
    links[HBM] = chip.hbm_bandwidth / chip.devices
    links[DCN] = chip.dcn_bandwidth / chip.devices
    links[PCIE] = chip.pcie_bandwidth / chip.devices
    return links


def _gather(ways: Sequence[Way], chips: int) -> tuple[float, float]:
    """Share on each link, and hops, of an all-gather: `(N-1)/N / (full links)` each.

    One ring: V (X-1)/X / 2 each direction; a line: V (X-1)/X through its end link; k rings at once:
    a k-th of it on each (colours that take the dimensions in turn).
    """
    links = sum(way.rate for way in ways)
    return (chips - 1) / chips / links, sum(way.hops for way in ways)


def _pairs(of: Group, twist_gain: float) -> tuple[float, float]:
    """Share on the busiest link, and hops, of an all-to-all.

    A device's bytes b go evenly to all places of a dimension of X; floor(X^2/4)/X is their mean
    distance round a ring and, doubled, the load of a line's middle link. On a ring b X/8 a link: a
    quarter of the gather of X b bytes. The longest dimension decides, which is the bisection bound.
    """
    loads = [way.size**2 // 4 / way.size / way.rate for way in of.ways]
    return max(loads) / twist_gain, sum(way.hops for way in of.ways)


def _neighbours(ring: Way) -> tuple[float, float]:
    """Share and hops of a permute that sends half of its bytes to each neighbour.

    On a line the last device's half for the first crosses every link backwards.
    """
    if ring.ways == 2:
        return 0.5 * ring.stride, float(ring.stride)
    return float(ring.stride), ring.hops


def _over_torus(
    kind: CollectiveKind, how: Algorithm, of: Group, topology: Topology
) -> tuple[float, float, Sequence[Way]]:
    """Share and hops by byte that a chip handles, and the dimensions that carry it."""
    if how is Algorithm.PAIRS:
        return *_pairs(of, _twist_gain(of, topology)), of.ways
    ring = one_ring(of)
    if how is Algorithm.NEIGHBOURS:
        return *_neighbours(ring), (ring,)
    ways = (ring,) if how is Algorithm.RING else of.ways
    share, hops = _gather(ways, of.chips)
    return _passes(kind) * share, _passes(kind) * hops, ways


def _twist_gain(of: Group, topology: Topology) -> float:
    """The gain of a twisted torus for an all-to-all of the whole slice, else 1."""
    if not (topology.twisted and of.whole):
        return 1.0
    return TWIST_GAIN[sum(size > min(topology.dims) for size in topology.dims)]


def _passes(kind: CollectiveKind) -> int:
    """An all-reduce passes over the links twice: reduce-scatter, then all-gather."""
    return 2 if kind is CollectiveKind.ALL_REDUCE else 1


def _over_die(kind: CollectiveKind, of: Group) -> float:
    """Bytes each way over the die-to-die link: half the tensor a pass, none for groups beside it.

    A permute of two devices alone sends both halves to the same neighbour.
    """
    if of.dies == 1:
        return 0.0
    return 1.0 if kind is CollectiveKind.PERMUTE and of.chips == 1 else 0.5 * _passes(kind)


def _received(kind: CollectiveKind, devices: int) -> float:
    """Bytes that a device receives, by byte of the tensor."""
    if kind is CollectiveKind.PERMUTE:
        return 1.0
    return _passes(kind) * (devices - 1) / devices


def route(
    kind: CollectiveKind, spans: Sequence[Span], topology: Topology, asked: str = ""
) -> Route:
    """The route of a collective over the group that the spans make, within a slice.

    asked: an `Algorithm`, or empty for the one that the compiler picks.
    Raises PlanError for an algorithm that the kind cannot use.
    """
    of = group(tuple(spans), topology)
    how = algorithm(kind, of, asked)
    if of.devices == 1:
        return NOTHING
    moved = CollectiveKind.ALL_REDUCE if how is Algorithm.ALL_REDUCE else kind
    die, received = _over_die(moved, of), _received(moved, of.devices)
    if of.chips == 1:
        weights = dict.fromkeys(DIE_LINKS, 1)
        return Route(die, _with_hbm(moved, weights, received / die), float(_passes(moved)))
    share, hops, ways = _over_torus(moved, how, of, topology)
    if of.dies == 2 and how is not Algorithm.PAIRS:
        share /= 2
    weights = {link: 1 for way in ways for link in way.links}
    if die:
        weights |= dict.fromkeys(DIE_LINKS, _weight(die / share))
        hops += _passes(moved)
    return Route(share, _with_hbm(moved, weights, received / share), hops)


def dcn_route(kind: CollectiveKind, slices: int) -> Route:
    """The route of a collective across slices: `(n-1)/n` of the bytes, twice for an all-reduce.

    Each device talks to its twins of the other slices through its share of the host's network card;
    inside the data centre network there is no contention. A permute sends all its bytes.
    """
    if slices == 1:
        return NOTHING
    return Route(_received(kind, slices), _with_hbm(kind, {DCN: 1}, 1.0), hops=0.0)


def _weight(ratio: float) -> int:
    """A whole weight that does not understate the ratio."""
    return max(1, ceil(ratio - 1e-9))


def _with_hbm(
    kind: CollectiveKind, weights: dict[str, int], received: float
) -> tuple[tuple[str, int], ...]:
    """The uses with HBM added, for so many bytes received per byte of share."""
    return (*weights.items(), (HBM, _weight(HBM_BYTES[kind] * received)))


def delay_seconds(path: Route, chip: Chip) -> float:
    """Seconds before bytes count: the launch, and the hops' latency."""
    return path.launched * chip.costs.collective_launch + path.hops * chip.costs.hop_latency


def route_seconds(path: Route, nbytes: Number, chip: Chip) -> Number:
    """Seconds of a collective alone: delay, and its bytes over the link that is slowest for it."""
    links = capacities(chip)
    slowest = max((weight / links[name] for name, weight in path.uses), default=0.0)
    return delay_seconds(path, chip) + nbytes * (path.share * slowest)


def collective_seconds(
    kind: CollectiveKind,
    nbytes: Number,
    spans: Sequence[Span],
    chip: Chip,
    topology: Topology,
    algorithm: str = "",
) -> Number:
    """Seconds of a collective of `nbytes` (the full tensor on one device) alone on the torus.

    The same equations as the engine's tasks, for arrays of bytes too. Raises PlanError for an
    algorithm that the kind cannot use.
    """
    return route_seconds(route(kind, spans, topology, algorithm), nbytes, chip)
