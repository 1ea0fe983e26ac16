"""Footprints of device groups on the torus, and least seconds of collectives on them, as arrays."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tpusim.base.divisors import divisors
from tpusim.bounds.plan_arrays import Floats, Whole, distinct, distinct_rows
from tpusim.costs.collective import (
    BEST_ALGORITHM,
    adding_seconds,
    best_candidates,
    delay_seconds,
    path_seconds,
)
from tpusim.costs.links import ici_rate
from tpusim.costs.route import ADDING_KINDS, CollectiveRoute, added_bytes, die_bytes, passes
from tpusim.hardware import Chip, Slice, Span
from tpusim.network import ALGORITHMS, Algorithm, algorithms_for, always_default, never_default
from tpusim.program import CollectiveKind

MOST_DIMENSIONS = 3
"""Dimensions of a torus."""

RING_LINKS = 2
"""Links of a device in one bidirectional ring."""

FIXED, PER_BYTE, ON_LINKS = range(3)
"""The rows of least seconds: before bytes count, for each byte of the tensor, and those of the
busiest link for each byte. Where groups share links the last may be more than the second: messages
queue, and the hops of the first hide behind them."""


@dataclass(frozen=True, slots=True, eq=False)
class Footprints:
    """Footprints of groups on the torus of their slices.

    pods: the slices.
    pod: the index of the slice of each.
    shape: chips along each dimension, [dimension, footprint]; 1 where the torus has none.
    dies: devices of a chip that are in the group.
    strides: the least distance between two of its chips along each dimension,
        [dimension, footprint].
        Groups with chips in between then lie on the same links.
    """

    pods: Sequence[Slice]
    pod: Whole
    shape: Whole
    dies: Whole
    strides: Whole

    def __len__(self) -> int:
        return len(self.pod)

    def take(self, some: Whole | NDArray[np.bool_]) -> "Footprints":
        """Return the footprints at these indices."""
        return Footprints(
            self.pods, self.pod[some], self.shape[:, some], self.dies[some], self.strides[:, some]
        )

    @property
    def chips(self) -> Whole:
        """Chips of each group."""
        found: Whole = self.shape.prod(axis=0)
        return found

    @property
    def devices(self) -> Whole:
        """Devices of each group."""
        return self.chips * self.dies

    @property
    def wide(self) -> NDArray[np.bool_]:
        """Whether a group has several chips along a dimension."""
        found: NDArray[np.bool_] = self.shape > 1
        return found

    @property
    def wraps(self) -> NDArray[np.bool_]:
        """Whether the torus wraps along a dimension."""
        return self._of_dims(lambda pod: pod.topology.wrap, 0) > 0

    @property
    def whole(self) -> NDArray[np.bool_]:
        """Whether a group covers a dimension."""
        found: NDArray[np.bool_] = self.shape == self._of_dims(lambda pod: pod.topology.dims, 1)
        return found

    @property
    def twisted(self) -> NDArray[np.bool_]:
        """Whether the torus is twisted."""
        return self._of_pods(lambda pod: pod.topology.twisted) > 0

    @property
    def rank(self) -> Whole:
        """Dimensions of the torus."""
        return self._of_pods(lambda pod: len(pod.topology.dims))

    @property
    def torus(self) -> Whole:
        """A number for the torus."""
        numbers = {pod.topology: number for number, pod in enumerate(self.pods)}
        return self._of_pods(lambda pod: numbers[pod.topology])

    @property
    def places(self) -> Whole:
        """A number for the dimensions of a group, and whether it covers its slice."""
        chips = self._of_pods(lambda pod: pod.topology.chips)
        found: Whole = 2 * self.wide.sum(axis=0) + (self.chips == chips)
        return found

    @property
    def shared(self) -> Whole:
        """The most groups that pass over one link of a ring, along any dimension.

        A ring crosses each of its dimensions somewhere, on a line of the torus. There a hop covers
        as many links as the stride says, and the groups that start at the positions in between do
        the same, one link further each: one link has them all.
        """
        found: Whole = np.where(self.wide, self.strides, 1).max(axis=0)
        return found

    @property
    def covers_dimensions(self) -> NDArray[np.bool_]:
        """Whether a group covers several dimensions, each of them whole."""
        covers = (self.whole | ~self.wide).all(axis=0)
        found: NDArray[np.bool_] = covers & (self.wide.sum(axis=0) > 1)
        return found

    def alike(self) -> tuple[Whole, Whole]:
        """Return an index of each footprint that collectives tell apart, and the number of each.

        Seconds depend on the chip and on how a group lies on its torus. The default algorithm may
        depend on the torus itself: of groups that cover dimensions, or of all if one asks for it.
        """
        every = (each for each in ALGORITHMS.values() if not each.covers_dimensions)
        asks = any(each.is_default not in (always_default, never_default) for each in every)
        torus = np.where(asks | self.covers_dimensions, self.torus, 0)
        lies = self.wide * (1 + self.whole + 2 * self.wraps)
        where = (torus, self.places, self.twisted, self.rank, *self.shape, *self.strides, *lies)
        return distinct_rows((self._chip, self.dies, *where))

    def of_chips(self) -> Iterator[tuple[Chip, Whole]]:
        """Yield each chip with the indices of the footprints on its slices."""
        own = self._chip
        for number in distinct(own)[0].tolist():
            yield self.pods[number].chip, np.flatnonzero(own == number)

    @property
    def _chip(self) -> Whole:
        """The number of a slice with the chip of each footprint."""
        numbers = {id(pod.chip): number for number, pod in enumerate(self.pods)}
        return self._of_pods(lambda pod: numbers[id(pod.chip)])

    def _of_pods(self, value: Callable[[Slice], int]) -> Whole:
        """Return a value of the slice of each footprint."""
        return np.array([value(pod) for pod in self.pods], np.int64)[self.pod]

    def _of_dims(self, values: Callable[[Slice], Sequence[int]], none: int) -> NDArray[np.int64]:
        """Return a value of each dimension of the torus, [dimension, footprint]."""
        padding = (none,) * MOST_DIMENSIONS
        table = [(*values(pod), *padding)[:MOST_DIMENSIONS] for pod in self.pods]
        return np.array(table).T[:, self.pod]


def every_footprint(pods: Sequence[Slice]) -> Footprints:
    """Return all footprints of groups of neighbours: the shapes that divide a slice."""
    shapes, rows = [], []
    for number, pod in enumerate(pods):
        none = ((1,),) * (MOST_DIMENSIONS - len(pod.topology.dims))
        along = (*(divisors(size) for size in pod.topology.dims), *none)
        shape = np.stack(np.meshgrid(*along, indexing="ij")).reshape(MOST_DIMENSIONS, -1)
        for dies in sorted({1, pod.chip.devices}):
            shapes.append(shape)
            rows.append(np.full((shape.shape[1], 2), (number, dies)))
    every, (owners, beside) = np.concatenate(shapes, axis=1), np.concatenate(rows).T
    return Footprints(pods, owners, every, beside, np.ones_like(every))


def least_seconds(footprints: Footprints, kind: CollectiveKind, algorithm: str) -> Floats:
    """Return the least seconds of a collective on each of the footprints, [`FIXED`..., footprint].

    algorithm: that carries it out, see `costs.route`.
    """
    found = np.zeros((3, len(footprints)))
    if kind is CollectiveKind.BROADCAST:
        return found
    if algorithm == BEST_ALGORITHM:
        found[:] = np.inf
        for name in best_candidates(kind):
            np.minimum(found, least_seconds(footprints, kind, name), out=found)
        return found
    on_torus = footprints.wide.any(axis=0)
    pairs = np.flatnonzero(~on_torus & (footprints.dies > 1))
    found[:, pairs] = _between_dies(footprints.take(pairs), kind)
    spread = np.flatnonzero(on_torus)
    footprints = footprints.take(spread)
    for run, name, some in _carried_out(footprints, kind, algorithm):
        found[:, spread[some]] = _on_torus(footprints.take(some), run, name)
    return found


def _carried_out(
    footprints: Footprints, kind: CollectiveKind, algorithm: str
) -> Iterator[tuple[CollectiveKind, str, Whole]]:
    """Yield what is carried out, by which algorithm, on which of the footprints."""
    every = np.arange(len(footprints))
    asked = [(algorithm, every)] if algorithm else list(_by_default(footprints, kind))
    for name, some in asked:
        instead = ALGORITHMS[name].runs_as
        if instead is None:
            yield kind, name, some
            continue
        for other, among in _by_default(footprints.take(some), instead):
            yield instead, other, some[among]


def _by_default(footprints: Footprints, kind: CollectiveKind) -> Iterator[tuple[str, Whole]]:
    """Yield the default algorithms, each with the indices of its footprints."""
    left = np.arange(len(footprints))
    for each in reversed(algorithms_for(kind)):
        if each.is_default is never_default or not len(left):
            continue
        claimed = np.ones(len(left), np.bool_)
        if each.is_default is not always_default:
            some = footprints.take(left)
            if each.covers_dimensions:
                claimed = some.covers_dimensions
            asked = np.flatnonzero(claimed)
            some = some.take(asked)
            at, number = distinct_rows((some.torus, *some.shape))
            answers = [
                each.is_default(kind, _spans(shape), footprints.pods[pod].topology)
                for pod, *shape in np.stack([some.pod, *some.shape])[:, at].T.tolist()
            ]
            claimed[asked] = np.array(answers, bool)[number]
        if claimed.any():
            yield each.name, left[claimed]
        left = left[~claimed]


def _spans(shape: Sequence[int]) -> tuple[Span, ...]:
    return tuple(Span(dim, size) for dim, size in enumerate(shape) if size > 1)


def _between_dies(footprints: Footprints, kind: CollectiveKind) -> Floats:
    """Return the seconds of groups of the two devices of a chip."""
    share = 1.0 if kind is CollectiveKind.PERMUTE else die_bytes(kind)
    found = np.zeros((3, len(footprints)))
    for chip, some in footprints.of_chips():
        moving = np.full(len(some), share / chip.die_to_die_bandwidth)
        hops = np.full(len(some), passes(kind))
        found[:, some] = _seconds(chip, kind, hops, footprints.devices[some], False, moving, moving)
    return found


def _on_torus(footprints: Footprints, kind: CollectiveKind, name: str) -> Floats:
    """Return the seconds of groups of several chips."""
    load, hops = _LOADS.get(name if kind in _CHAINED else str(kind), _on_all_dimensions)(footprints)
    chips, times = footprints.chips, passes(kind)
    adds_after = ALGORITHMS[name].adds_after and kind in ADDING_KINDS
    hops = times * hops + np.where(footprints.dies == 2, times, 0)
    part = np.where((footprints.dies == 2) & ALGORITHMS[name].halved, 0.5, 1.0)
    busiest = load
    if name == Algorithm.RING and kind in _CHAINED:
        rings = np.maximum(load, footprints.shared * (1 - 1 / chips) / RING_LINKS)
        busiest = np.where(footprints.twisted, load, rings)
    found = np.zeros((3, len(footprints)))
    for chip, some in footprints.of_chips():
        fastest = ici_rate(chip) * max(chip.ici_shares, default=1.0)
        scale = times * part[some] / fastest
        moving, most = scale * load[some], scale * busiest[some]
        devices = footprints.devices[some]
        found[:, some] = _seconds(chip, kind, hops[some], devices, adds_after, moving, most)
    return found


def _seconds(
    chip: Chip,
    kind: CollectiveKind,
    hops: Whole,
    devices: Whole,
    adds_after: bool,
    moving: Floats,
    busiest: Floats,
) -> Floats:
    """Return the seconds of collectives: launch and hops, bytes and additions, busiest links.

    The additions touch no HBM, as operand and result may be on the chip.

    moving: seconds of the transfers for each byte.
    busiest: of the busiest link, with what other groups send over it.
    """
    factor = chip.costs.time_of(kind)
    moving, busiest = moving * factor, busiest * factor
    if kind in ADDING_KINDS:
        beside, after = _adding(chip, kind, devices, adds_after)
        moving = np.maximum(moving, beside) + after
    counts, index = distinct(hops)
    routes = [CollectiveRoute(0.0, (), count, kind=kind) for count in counts.tolist()]
    delays = [delay_seconds(path, chip) for path in routes]
    return np.stack([np.array(delays, np.float64)[index], moving, busiest])


def _adding(chip: Chip, kind: CollectiveKind, devices: Whole, adds_after: bool) -> Floats:
    """Return the seconds of additions for each byte, beside the transfers and after them."""
    sizes, index = distinct(devices)
    routes = [
        CollectiveRoute(
            0.0, (), 0, added_bytes=added_bytes(kind, size), adds_after=adds_after,
            added_hbm_bytes=0.0, kind=kind,
        )
        for size in sizes.tolist()
    ]  # fmt: skip
    each = [(path_seconds(path, 1.0, chip), adding_seconds(path, 1.0, chip)) for path in routes]
    return np.array(each, np.float64).reshape(-1, 2)[index].T


def _on_one_chain(footprints: Footprints) -> tuple[Floats, Whole]:
    """Return the bytes on the busiest link of a gather on one chain, and the hops in a row.

    On a ring of n, (n - 1) / 2 chunks pass each link in each direction, and n / 2 hops follow one
    another; at the end of a line n - 1 chunks arrive over one link, after n - 1 hops (see
    `network.chains`). Every other position of a dimension that wraps is a ring too, which shares
    its links. A group of several dimensions may close to a ring.
    """
    chips, wide, wraps = footprints.chips, footprints.wide, footprints.wraps
    straight = (wide.sum(axis=0) == 1) & ~footprints.twisted
    round_it = (wide & wraps).any(axis=0)
    opened = straight & ~(wide & wraps & footprints.whole).any(axis=0)
    load = np.where(opened, (chips - 1) / chips, (chips - 1) / chips / RING_LINKS)
    halfway = np.maximum(chips // 2, 1)
    return load, np.where(opened & ~round_it, chips - 1, halfway)


def _on_all_dimensions(footprints: Footprints) -> tuple[Floats, Whole]:
    """Return the least bytes on a link of a gather on all dimensions at once, and its hops.

    A device receives the chunks of all others over all its links within the group: two along a
    whole dimension that wraps, else one at the ends. On a twisted torus, whose rings take turns
    between dimensions, each has two.
    """
    chips, wide, wraps = footprints.chips, footprints.wide, footprints.wraps
    links = np.where(wide, np.where(wraps & footprints.whole, 2, 1), 0).sum(axis=0)
    steps = np.where(wraps, footprints.shape // 2, footprints.shape - 1)
    hops = np.where(wide, steps, 0).sum(axis=0)
    links = np.where(footprints.twisted, 2 * footprints.rank, links)
    return (chips - 1) / chips / links, np.where(footprints.twisted, 1, hops)


def _exchanged(footprints: Footprints) -> tuple[Floats, Whole]:
    """Return the least bytes on the busiest link of an exchange of all with all; hops hide.

    Each device sends 1/n of its bytes to each other. Along a ring of s they travel s/4 links in
    the mean, over two links a device; half of a line's bytes cross its middle: s/8 and s/4 of the
    bytes ("How to Scale Your Model", sharding chapter). Of an odd ring, (s^2 - 1) / (8 s). Strided
    parts travel as much farther as their stride says.
    """
    size, wide, strides = footprints.shape, footprints.wide, footprints.strides
    middles = np.where((strides > 1) | (footprints.whole & footprints.wraps), 8, 4)
    along = np.where(wide, strides * (size - size % 2 / size) / middles, 0.0)
    twisted = (1 - 1 / footprints.chips) / (2 * footprints.rank)
    load = np.where(footprints.twisted, twisted, along.max(axis=0))
    return load, np.zeros(len(footprints), np.int64)


def _sent_on(footprints: Footprints) -> tuple[Floats, Whole]:
    """Return the least bytes on a link of a permute, half in each direction, and its hop."""
    return np.full(len(footprints), 1 / RING_LINKS), np.ones(len(footprints), np.int64)


_LOADS: dict[str, Callable[[Footprints], tuple[Floats, Whole]]] = {
    Algorithm.RING: _on_one_chain,
    Algorithm.ND: _on_all_dimensions,
    str(CollectiveKind.ALL_TO_ALL): _exchanged,
    str(CollectiveKind.PERMUTE): _sent_on,
}

_CHAINED = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE)


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
    return min(ways) * pod.chip.costs.time_of(CollectiveKind.PERMUTE)
