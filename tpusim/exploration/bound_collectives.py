"""Least seconds of collectives, on arrays of plans: whatever placement and algorithm are chosen.

How many links the members of a group have, and how far they are apart, depends on how the group
lies on the torus; here it lies as well as it can. What the lowering makes of a collective
(synchronous, beside the core, a ring in a matmul) is what all lines of its table that may hold
agree on. Launches, additions and transfers across slices are those of the costs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import NamedTuple, TypeAlias

from tpusim.base.divisors import divisors
from tpusim.costs.collective import (
    BEST_ALGORITHM,
    adding_seconds,
    best_candidates,
    delay_seconds,
    path_seconds,
)
from tpusim.costs.links import ici_rate
from tpusim.costs.route import ADDING_KINDS, CollectiveRoute, added_bytes, die_bytes, passes
from tpusim.hardware import Chip, Slice, Span, Topology
from tpusim.lowering.collective_lowering import LAYER_AT_ONCE, Lowering
from tpusim.lowering.collectives_by_generation import in_circular_pipeline, lowering_for
from tpusim.lowering.device_groups import DeviceGroup
from tpusim.network import ALGORITHMS, Algorithm, default_algorithm
from tpusim.plan import Compiler
from tpusim.program import CollectiveKind, Mode

Shape: TypeAlias = tuple[int, ...]
"""Chips of a group along each dimension of the torus."""


class Lie(NamedTuple):
    """How a group lies on the torus.

    shape: its chips along each dimension.
    dies: devices of a chip that are in it.
    strides: the least distance between two of its chips along each dimension. Groups with chips in
        between then lie on the same links. Empty for neighbours.
    """

    shape: Shape
    dies: int
    strides: Shape = ()

    @property
    def shared(self) -> int:
        """The most groups that pass over one link of a ring, along any dimension.

        A ring crosses each of its dimensions somewhere, on a line of the torus. There a hop covers
        as many links as the stride says, and the groups that start at the positions in between do
        the same, one link further each: one link has them all.
        """
        along = zip(self.shape, self.strides, strict=False)
        return max((stride for size, stride in along if size > 1), default=1)


RING_LINKS = 2
"""Links of a device in one bidirectional ring."""


class LeastSeconds(NamedTuple):
    """Least seconds of a collective alone.

    fixed: before bytes count.
    per_byte: for each byte of its tensor.
    on_links: those of the busiest link for each byte. Where groups share links they may be more
        than `per_byte`: messages queue, and the hops of `fixed` hide behind them.
    """

    fixed: float
    per_byte: float
    on_links: float


@dataclass(frozen=True, slots=True)
class GroupHabits:
    """What lowerings that may hold for a group have in common.

    gathers_wait, reductions_wait: True if the core waits for a gather of weights, or a reduction of
        gradients, unless a matmul takes it in.
    outer_gathers_wait: the same of gathers beside a loop over layers.
    activations_wait: the same of collectives of activations.
    weight_rings, gradient_rings: True if a matmul may take in a gather of weights, or a reduction
        of gradients.
    gather_algorithms, reduce_algorithms: that may carry them out alone.
    gathers_in_turn, outer_in_turn: True if gathers of weights are asynchronous, alone, and each
        starts when the one before is done; the same beside a loop over layers.
    at_once: True if all gathers of weights of a body start with it, and gradients are reduced
        beside the core (`LAYER_AT_ONCE`).
    shares_links: True if gathers that start together move at the same time. Those that add up a
        padded buffer afterwards do not: the addition holds up the stream.
    across_wait, across_in_turn, outer_across_wait, across_reductions_wait: as those above, of
        collectives across slices alone.
    """

    gathers_wait: bool
    reductions_wait: bool
    outer_gathers_wait: bool
    activations_wait: bool
    weight_rings: bool
    gradient_rings: bool
    gather_algorithms: tuple[str, ...]
    reduce_algorithms: tuple[str, ...]
    gathers_in_turn: bool
    outer_in_turn: bool
    at_once: bool
    shares_links: bool
    across_wait: bool
    across_in_turn: bool
    outer_across_wait: bool
    across_reductions_wait: bool


@cache
def least_seconds(
    pod: Slice,
    devices: int,
    kind: CollectiveKind,
    algorithms: tuple[str, ...] = ("",),
    lie: Lie | None = None,
) -> LeastSeconds:
    """Return the least seconds of a collective over a group of so many devices of a slice.

    algorithms: that may carry it out, see `costs.route`.
    lie: how the group lies; any way unless given.

    The fixed seconds and those of bytes are the least of each over all ways in which the group can
    lie, so that together they are no more than those of any.
    """
    if devices <= 1 or kind is CollectiveKind.BROADCAST:
        return LeastSeconds(0.0, 0.0, 0.0)
    found = [
        _seconds(pod, each, kind, algorithm)
        for each in _lies(pod, devices, lie)
        for algorithm in algorithms
    ]
    if not found:
        return LeastSeconds(0.0, 0.0, 0.0)
    return _least(found)


def _least(found: Sequence[LeastSeconds]) -> LeastSeconds:
    return LeastSeconds(*(min(each) for each in zip(*found, strict=True)))


def _lies(pod: Slice, devices: int, lie: Lie | None) -> tuple[Lie, ...]:
    """Return the ways in which a group can lie: one if it is given."""
    if lie is not None:
        return (lie,)
    return tuple(
        Lie(shape, dies)
        for dies in sorted({1, pod.chip.devices})
        if devices % dies == 0
        for shape in _shapes(pod.topology.dims, devices // dies)
    )


@cache
def _shapes(dims: Shape, chips: int) -> tuple[Shape, ...]:
    """Return the shapes that so many chips can have."""
    first, *others = dims
    fitting = [size for size in divisors(first) if chips % size == 0]
    if not others:
        return ((chips,),) if chips in fitting else ()
    return tuple(
        (size, *rest) for size in fitting for rest in _shapes(tuple(others), chips // size)
    )


def _seconds(pod: Slice, lie: Lie, kind: CollectiveKind, algorithm: str) -> LeastSeconds:
    """Return the least seconds over groups that lie alike."""
    if algorithm == BEST_ALGORITHM:
        return _least([_seconds(pod, lie, kind, each) for each in best_candidates(kind)])
    shape, dies = lie.shape, lie.dies
    spans = tuple(Span(dim, size) for dim, size in enumerate(shape) if size > 1)
    devices = dies * prod(shape)
    if not spans:
        share = 1.0 if kind is CollectiveKind.PERMUTE else die_bytes(kind)
        moving = share / _die_rate(pod)
        return _of_route(pod, _route(kind, passes(kind), devices), moving, moving)
    name = algorithm or default_algorithm(kind, spans, pod.topology)
    if (instead := ALGORITHMS[name].runs_as) is not None:
        kind, name = instead, default_algorithm(instead, spans, pod.topology)
    load, hops = _LOADS.get(name if kind in _CHAINED else str(kind), _on_all_dimensions)(
        lie, pod.topology
    )
    part = 0.5 if dies == 2 and ALGORITHMS[name].halved else 1.0
    times = passes(kind)
    adds_after = ALGORITHMS[name].adds_after and kind in ADDING_KINDS
    path = _route(kind, times * hops + (times if dies == 2 else 0), devices, adds_after)
    busiest = load
    if name == Algorithm.RING and kind in _CHAINED and not pod.topology.twisted:
        busiest = max(load, lie.shared * (1 - 1 / prod(shape)) / RING_LINKS)
    scale = times * part / _link_rate(pod.chip)
    return _of_route(pod, path, scale * load, scale * busiest)


def _route(
    kind: CollectiveKind, hops: int, devices: int, adds_after: bool = False
) -> CollectiveRoute:
    """Return what launch, hops and additions of a route depend on.

    The additions touch no HBM, as operand and result may be on the chip.
    """
    return CollectiveRoute(
        0.0, (), hops, added_bytes=added_bytes(kind, devices), adds_after=adds_after,
        added_hbm_bytes=0.0,
    )  # fmt: skip


def _of_route(pod: Slice, path: CollectiveRoute, moving: float, busiest: float) -> LeastSeconds:
    """Return the seconds of a route.

    moving: seconds of its transfers for each byte.
    busiest: of the busiest link, with what other groups send over it.
    """
    if not path.added_bytes:
        return LeastSeconds(delay_seconds(path, pod.chip), moving, busiest)
    beside = float(path_seconds(path, 1.0, pod.chip))
    after = float(adding_seconds(path, 1.0, pod.chip))
    return LeastSeconds(delay_seconds(path, pod.chip), max(moving, beside) + after, busiest)


def _link_rate(chip: Chip) -> float:
    """Return the bytes per second of the fastest link, where dimensions differ."""
    return ici_rate(chip) * max(chip.ici_shares, default=1.0)


def _die_rate(pod: Slice) -> float:
    return pod.chip.die_to_die_bandwidth


def _on_one_chain(lie: Lie, topology: Topology) -> tuple[float, int]:
    """Return the bytes on the busiest link of a gather on one chain, and the hops in a row.

    On a ring of n, (n - 1) / 2 chunks pass each link in each direction, and n / 2 hops follow one
    another; at the end of a line n - 1 chunks arrive over one link, after n - 1 hops (see
    `network.chains`). Every other position of a dimension that wraps is a ring too, which shares
    its links. A group of several dimensions may close to a ring.
    """
    shape, chips = lie.shape, prod(lie.shape)
    if sum(size > 1 for size in shape) == 1 and not topology.twisted:
        ((closed, wraps),) = (
            (size == length and wraps, wraps)
            for size, length, wraps in zip(shape, topology.dims, topology.wrap, strict=True)
            if size > 1
        )
        if not closed:
            return (chips - 1) / chips, max(chips // 2, 1) if wraps else chips - 1
    return (chips - 1) / chips / RING_LINKS, max(chips // 2, 1)


def _on_all_dimensions(lie: Lie, topology: Topology) -> tuple[float, int]:
    """Return the least bytes on a link of a gather on all dimensions at once, and its hops.

    A device receives the chunks of all others over all its links within the group: two along a
    whole dimension that wraps, else one at the ends. On a twisted torus, whose rings take turns
    between dimensions, each has two.
    """
    shape, chips = lie.shape, prod(lie.shape)
    if topology.twisted:
        return (chips - 1) / chips / (2 * len(topology.dims)), 1
    along = [
        (2 if size == length and wraps else 1, size // 2 if wraps else size - 1)
        for size, length, wraps in zip(shape, topology.dims, topology.wrap, strict=True)
        if size > 1
    ]
    return (chips - 1) / chips / sum(links for links, _ in along), sum(hops for _, hops in along)


def _exchanged(lie: Lie, topology: Topology) -> tuple[float, int]:
    """Return the least bytes on the busiest link of an exchange of all with all; hops hide.

    Each device sends 1/n of its bytes to each other. Along a ring of s they travel s/4 links in
    the mean, over two links a device; half of a line's bytes cross its middle: s/8 and s/4 of the
    bytes ("How to Scale Your Model", sharding chapter). Of an odd ring, (s^2 - 1) / (8 s). Strided
    parts travel as much farther as their stride says.
    """
    shape = lie.shape
    if topology.twisted:
        return (1 - 1 / prod(shape)) / (2 * len(topology.dims)), 0
    strides = lie.strides or (1,) * len(shape)
    along = zip(shape, strides, topology.dims, topology.wrap, strict=True)
    loads = [
        stride * (size - size % 2 / size) / (8 if stride > 1 or (size == length and wraps) else 4)
        for size, stride, length, wraps in along
        if size > 1
    ]
    return max(loads), 0


def _sent_on(lie: Lie, topology: Topology) -> tuple[float, int]:
    """Return the least bytes on a link of a permute, half in each direction, and its hop."""
    return 1 / RING_LINKS, 1


_LOADS: dict[str, Callable[[Lie, Topology], tuple[float, int]]] = {
    Algorithm.RING: _on_one_chain,
    Algorithm.ND: _on_all_dimensions,
    str(CollectiveKind.ALL_TO_ALL): _exchanged,
    str(CollectiveKind.PERMUTE): _sent_on,
}

_CHAINED = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE)


@cache
def ring_seconds_per_byte(pod: Slice, devices: int) -> float:
    """Return the least seconds of a ring in a matmul for each byte of the tensor.

    A device receives the parts of all others over two links.
    """
    if devices <= 1:
        return 0.0
    ways = [
        (1 - beside / devices) / beside / (RING_LINKS * ici_rate(pod.chip))
        for beside in {1, pod.chip.devices}
        if devices % beside == 0
    ]
    return min(ways)


@cache
def habits_of(
    pod: Slice,
    compiler: Compiler,
    tiled: bool,
    devices: int,
    circular: bool,
    lie: Lie | None = None,
) -> GroupHabits:
    """Return what the lowerings that may hold for a group agree on, however it lies.

    tiled: the group may be one of weights that are sharded over all axes.
    circular: the collective is in the loop of a circular pipeline.
    lie: how it lies; any way unless given.
    """
    found = _lowerings(pod, compiler, tiled, devices, devices, lie)
    if circular and compiler.lowering != "ideal":
        found += [in_circular_pipeline(low) for low in found]
    gathers = all(Mode.ASYNC not in (low.gather, low.twice) for low in found)
    reduced = {low.reduce_algorithm for low in found}
    reduced |= {low.major_algorithm for low in found if low.major_algorithm}
    rings = [low for low in found if low.reduce is Mode.RING]
    reduced |= {str(Algorithm.ALL_REDUCE)} if rings else set()
    joined = [
        low
        for slices in divisors(pod.num_slices)
        for low in _lowerings(pod, compiler, tiled, devices * slices, devices, lie)
    ]
    in_turn = all(map(_gathers_in_turn, found))
    across = _lowerings(pod, compiler, tiled, devices, 1)
    crosses = all(low.gather is not Mode.ASYNC for low in across)
    return GroupHabits(
        gathers_wait=gathers,
        reductions_wait=all(low.reduce is not Mode.ASYNC for low in found),
        outer_gathers_wait=gathers or not any(low.overlap.outside_layers for low in found),
        activations_wait=not any(low.offloaded for low in found),
        weight_rings=any(low.gather is Mode.RING for low in joined),
        gradient_rings=any(low.reduce is Mode.RING for low in joined),
        gather_algorithms=tuple(sorted({low.gather_algorithm for low in found})),
        reduce_algorithms=tuple(sorted(reduced)),
        gathers_in_turn=in_turn,
        outer_in_turn=in_turn and all(low.overlap.outside_layers for low in found),
        at_once=all(low.overlap == LAYER_AT_ONCE and low.offloaded for low in found),
        shares_links=all(not low.gather_algorithm for low in found),
        across_wait=crosses,
        across_in_turn=all(map(_gathers_in_turn, across)),
        outer_across_wait=crosses or not any(low.overlap.outside_layers for low in across),
        across_reductions_wait=all(low.reduce is not Mode.ASYNC for low in across),
    )


def _gathers_in_turn(low: Lowering) -> bool:
    alone = low.gather is Mode.ASYNC and not low.only_mlp
    return alone and low.overlap.prefetch_depth == 1


def _lowerings(
    pod: Slice, compiler: Compiler, tiled: bool, devices: int, within: int, lie: Lie | None = None
) -> list[Lowering]:
    """Return the distinct lowerings for groups of so many devices, however they lie.

    within: devices of the group in a slice.
    """
    places = {
        (sum(size > 1 for size in shape), prod(shape) == pod.topology.chips)
        for shape, *_ in _lies(pod, within, lie)
    }
    found = [
        lowering_for(
            pod.chip.generation,
            compiler,
            DeviceGroup(devices, dims, whole, False, 0.0, 1, pod.num_slices, with_rings),
        )
        for dims, whole in sorted(places)
        for with_rings in {False, tiled}
    ]
    return list({low.name: low for low in found}.values())
