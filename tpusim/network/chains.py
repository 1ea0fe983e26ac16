"""Chains: the order in which a collective passes its data from chip to chip of a group.

A chain that closes is a ring, whose two directions each carry half; one that does not is a line.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tpusim.hardware import Span, Topology
from tpusim.network.grids import Grid, LineTraffic, Numbers, Tour, tours
from tpusim.network.groups import Chips, covered_part, groups, merged
from tpusim.network.paths import Loads, link_loads, shortest_moves


class ChainMove(StrEnum):
    """The data that passes along a chain.

    gather: each chip's chunk to all others.
    scatter: a chunk for each chip, summed in transit.
    shift: to both neighbours, half of the bytes each.
    halo: like a shift, but not from end to end.
    onward: all bytes to the next neighbour.
    step: like onward, but not from end to end.
    mirror: each chip's bytes to the one as far from the other end, the shorter way round.
    spread: the first chip's bytes to all others, half of them in each direction.
    """

    GATHER = "gather"
    SCATTER = "scatter"
    SHIFT = "shift"
    HALO = "halo"
    ONWARD = "onward"
    STEP = "step"
    MIRROR = "mirror"
    SPREAD = "spread"


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """The chips of all groups of a collective, [group, place in the chain, dimension].

    forward, backward: the links to cross along each edge, [group, edge, dimension]. An edge goes
        from each place to the next, and from the last to the first of a ring.
    distinct: places in a row that hold different chunks; 0 for all of them (see `orbit_chains`).
    same_order: edges through several dimensions take them in the same order in both directions,
        instead of returning by the same links.
    grid, tour: the groups and the order of their members, on a torus without a twist.
    """

    chips: Chips
    closed: bool
    topology: Topology
    forward: Chips
    backward: Chips
    distinct: int = 0
    same_order: bool = False
    grid: Grid | None = None
    tour: Tour | None = None

    @classmethod
    def of(cls, chips: Chips, closed: bool, topology: Topology) -> "Chain":
        """Return the chain through the chips of each group in their order."""
        ends = np.roll(chips, -1, axis=1)
        starts, ends = (chips, ends) if closed else (chips[:, :-1], ends[:, :-1])
        forward = shortest_moves(starts, ends, topology)
        return cls(chips, closed, topology, forward, -forward)

    def passed_on(self, closed: bool) -> "Chain":
        """Return the chain through the same chips that closes, or the one that does not."""
        chain = Chain.of(self.chips, closed, self.topology)
        return replace(chain, grid=self.grid, tour=self.tour)

    @classmethod
    def variants(cls, chips: Chips, topology: Topology) -> "Iterator[Chain]":
        """Yield the ring and the line through the chips, with both routes back if two exist."""
        for closed in (True, False):
            chain = cls.of(chips, closed, topology)
            yield chain
            if (np.count_nonzero(chain.forward, axis=2) > 1).any():
                yield replace(chain, same_order=True)

    def busiest(self, weights: tuple[Numbers, Numbers], alone: bool = False) -> float:
        """Return the load of the busiest link if each edge carries its weight both ways.

        alone: in the first group alone.
        """
        if self.grid and self.tour:
            return self.grid.busiest(self.tour.passed(weights, self.same_order), alone)
        return float((self.first if alone else self).loads(weights).max())

    @property
    def first(self) -> "Chain":
        """The chain of the first group alone."""
        one = replace(self, grid=None, tour=None)
        return replace(
            one, chips=self.chips[:1], forward=self.forward[:1], backward=self.backward[:1]
        )

    @property
    def length(self) -> int:
        """Chips of a group."""
        return int(self.chips.shape[1])

    @property
    def chunks(self) -> int:
        """Different chunks along the chain."""
        return self.distinct or self.length

    @property
    def least_cost(self) -> tuple[float, float]:
        """A bound: the mean load over all links in use, on a ring."""
        hops = np.abs(self.forward)
        used = np.count_nonzero(hops.any(axis=(0, 1)))
        edges = float(hops.sum()) * (self.length - 1) / 2 if self.closed else 0.0
        return edges / max(1, int(used) * self.topology.chips) - 1e-9, 0

    @property
    def gather_load(self) -> float:
        """The load of the busiest link in a gather."""
        return busiest_load(ChainMove.GATHER, self)

    @property
    def gather_hops(self) -> int:
        """The links that a gather crosses one after another, see `chain_hops`."""
        return chain_hops(ChainMove.GATHER, self)

    @property
    def edge_hops(self) -> NDArray[np.intp]:
        """Links of each edge, [group, edge]."""
        return np.asarray(np.abs(self.forward).sum(axis=2))

    def edges(self, side: int) -> tuple[Chips, Chips]:
        """Return starts and moves of all edges forwards (0) or backwards (1), [edge, dim]."""
        n, dims = self.forward.shape[1], self.chips.shape[2]
        ends = np.roll(self.chips, -1, axis=1)
        starts, moves = (ends, self.backward) if side else (self.chips, self.forward)
        return starts[:, :n].reshape(-1, dims), moves.reshape(-1, dims)

    def order(self, side: int) -> range:
        """Return the order of dimensions in which an edge is crossed; mostly reversed backwards."""
        count = len(self.topology.dims)
        return range(count)[::-1] if side and not self.same_order else range(count)

    def loads(self, weights: tuple[Numbers, Numbers]) -> Loads:
        """Return the load of each link if each edge carries its weight forwards and backwards."""
        if self.grid and self.tour:
            return self.grid.loads(self.tour.passed(weights, self.same_order))
        many = self.chips.shape[0]
        return sum(
            (
                link_loads(*self.edges(side), np.tile(each, many), self.topology, self.order(side))
                for side, each in enumerate(weights)
            ),
            start=np.zeros(()),
        )


def edge_weights(move: ChainMove, chain: Chain) -> tuple[Numbers, Numbers]:
    """Return the chunks (bytes, for shifts, halos and spreads) on each edge, in both directions.

    On a ring of n a gather sends each chunk half way round in both directions: (n-1)/2 chunks per
    edge. On a line, the edge after place i carries the i+1 chunks before it forwards, the others
    backwards.
    """
    n, edges = chain.chunks, chain.forward.shape[1]
    place = np.arange(edges, dtype=float)
    match move:
        case ChainMove.GATHER:
            return gather_weights(n, edges, chain.closed)
        case ChainMove.SCATTER:
            return gather_weights(n, edges, chain.closed)[::-1]
        case ChainMove.SHIFT | ChainMove.HALO:
            return np.full(edges, 0.5), np.full(edges, 0.5)
        case ChainMove.MIRROR:
            crossed = [edge for at in range(n) for edge in mirror_path(chain, at)]
            both = (np.array([edge for side, edge in crossed if side == way]) for way in (0, 1))
            forward, backward = (np.bincount(each.astype(int), minlength=edges) for each in both)
            return forward.astype(float), backward.astype(float)
        case ChainMove.SPREAD if chain.closed:
            return 0.5 * (place < n - 1), 0.5 * (place > 0)
    return np.ones(edges), np.zeros(edges)


def gather_weights(chunks: int, edges: int, closed: bool) -> tuple[Numbers, Numbers]:
    """Return the chunks of a gather on each edge, in both directions; see `edge_weights`."""
    if closed:
        return np.full(edges, (chunks - 1) / 2), np.full(edges, (chunks - 1) / 2)
    place = np.arange(edges, dtype=float)
    return place + 1, chunks - 1 - place


def mirror_path(chain: Chain, place: int) -> list[tuple[int, int]]:
    """Return the edges from a place to its mirror image, each with its side; backwards is 1.

    The way along the chain, or the other way round a ring if that is shorter.
    """
    n, other = chain.length, chain.length - 1 - place
    low, high = sorted((place, other))
    along = list(range(low, high))
    lengths = chain.edge_hops.max(axis=0)
    round_ring = [*range(high, n), *range(low)] if chain.closed else []
    shorter = round_ring and lengths[round_ring].sum() < lengths[along].sum()
    edges, backward = (round_ring, place < other) if shorter else (along, place > other)
    return [(int(backward), edge) for edge in (reversed(edges) if backward else edges)]


@lru_cache(maxsize=64)
def move_loads(move: ChainMove, chain: Chain) -> Loads:
    """Return the chunks on each link."""
    return chain.loads(edge_weights(move, chain))


@lru_cache(maxsize=4096)
def busiest_load(move: ChainMove, chain: Chain, alone: bool = False) -> float:
    """Return the chunks on the busiest link; alone: of the first group."""
    return chain.busiest(edge_weights(move, chain), alone)


def chain_hops(move: ChainMove, chain: Chain) -> int:
    """Return the links that are crossed one after another until the last chip has its data.

    A gather on a ring of n passes n/2 edges in turn, of which the longest such run decides; on a
    line all of them. A shift passes one.
    """
    hops = chain.edge_hops
    match move:
        case ChainMove.SHIFT | ChainMove.HALO | ChainMove.ONWARD | ChainMove.STEP:
            return int(hops.max())
        case ChainMove.GATHER | ChainMove.SCATTER:
            return _gather_hops(hops, chain.chunks, chain.closed)
        case ChainMove.MIRROR:
            ways = (mirror_path(chain, place) for place in range(chain.length))
            return max(int(hops[:, [edge for _, edge in way]].sum(axis=1).max()) for way in ways)
        case ChainMove.SPREAD if chain.closed:
            return _longest_run(hops, chain.length - 1)
    return int(hops.sum(axis=1).max())


def _gather_hops(hops: NDArray[np.intp], chunks: int, closed: bool) -> int:
    return _longest_run(hops, max(1, chunks // 2)) if closed else int(hops.sum(axis=1).max())


def _longest_run(hops: NDArray[np.intp], count: int) -> int:
    """Return the most links on `count` edges in a row, round the ring."""
    turned = np.concatenate([0 * hops[:, :1], hops, hops[:, : count - 1]], axis=1)
    sums = np.cumsum(turned, axis=1)
    return int((sums[:, count:] - sums[:, :-count]).max())


@lru_cache(maxsize=4096)
def dimension_chain(dim: int, spans: tuple[Span, ...], topology: Topology) -> Chain:
    """Return the chain along one dimension of a group: a ring if that loads no link more."""
    along = tuple(span for span in spans if span.dim == dim)
    if topology.twisted:
        chips = _members(along, topology)
        return best_chain(Chain.of(chips, closed, topology) for closed in (True, False))
    return _grid_chain(along, topology)


@lru_cache(maxsize=4096)
def one_chain(spans: tuple[Span, ...], topology: Topology) -> Chain:
    """Return the best chain through all chips of a group, over all dimensions that it covers.

    Candidates pass row after row in the orders of `tours`, along each dimension first. The best
    loads its links least; then the shortest run of hops decides, then the order of candidates.
    """
    dims = {span.dim for span in spans}
    if len(dims) == 1:
        return dimension_chain(*dims, spans, topology)
    if topology.twisted:
        chips, sizes = _members(spans, topology), Grid.of(spans, topology).sizes
        return best_chain(
            chain
            for tour in tours(sizes)
            for chain in Chain.variants(chips[:, tour.order], topology)
        )
    return _grid_chain(spans, topology)


@lru_cache(maxsize=4096)
def is_ring(spans: tuple[Span, ...], topology: Topology) -> bool:
    """Return True if the best chain through a group is a ring whose edges share no link.

    spans: of a group over several dimensions.

    Each edge returns by the links that it came by, and no other crosses them.
    """
    inner, part, _ = covered_part(spans, topology)
    chain = one_chain(merged(inner), part)
    unshared = chain.gather_load == (chain.length - 1) / 2
    return chain.closed and unshared and not chain.same_order


def _members(spans: Sequence[Span], topology: Topology) -> Chips:
    """Return the chips of all groups, [group, member, dimension], row by row in each."""
    return groups(sorted(spans, key=lambda span: (span.dim, -span.stride)), topology)


def _grid_chain(spans: tuple[Span, ...], topology: Topology) -> Chain:
    """Return the best chain through groups that are grids, on a torus without a twist."""
    grid = Grid.of(spans, topology)
    best = best_chain(
        _GridChain(grid, tour, closed, same_order)
        for tour in tours(grid.sizes)
        for closed in (True, False)
        for same_order in ((False, True) if tour.turns_on(closed) else (False,))
    )
    chain = Chain.of(_members(spans, topology)[:, best.tour.order], best.closed, topology)
    return replace(chain, same_order=best.same_order, grid=grid, tour=best.tour)


_C = TypeVar("_C", Chain, "_GridChain")


def best_chain(candidates: Iterable[_C]) -> _C:
    """Return the chain whose links carry least in a gather, then the one of the fewest hops."""
    best: _C | None = None
    least = (np.inf, np.inf)
    for chain in candidates:
        if chain.least_cost >= least or (load := chain.gather_load) > least[0]:
            continue
        cost = load, float(chain.gather_hops)
        if cost < least:
            best, least = chain, cost
        if least <= ((chain.length - 1) / 2, chain.length // 2):
            break
    assert best is not None
    return best


@dataclass(frozen=True, slots=True, eq=False)
class _GridChain:
    """A chain through groups that are grids, while it is a candidate."""

    grid: Grid
    tour: Tour
    closed: bool
    same_order: bool

    @property
    def length(self) -> int:
        return len(self.tour.cells)

    @property
    def least_cost(self) -> tuple[float, float]:
        """Those of a line: all other chunks cross its last edge, and one crosses all edges."""
        return (0.0, 0.0) if self.closed else (self.length - 1, self.length - 1)

    @property
    def gather_load(self) -> float:
        return self.grid.busiest(_gathered(self.tour, self.closed, self.same_order))

    @property
    def gather_hops(self) -> int:
        hops = self.grid.edge_hops(self.tour)[: self.length if self.closed else -1]
        return _gather_hops(hops[None], self.length, self.closed)


@lru_cache(maxsize=4096)
def _gathered(tour: Tour, closed: bool, same_order: bool) -> tuple[LineTraffic, ...]:
    """Return what passes along each dimension in a gather."""
    n = len(tour.cells)
    return tour.passed(gather_weights(n, n if closed else n - 1, closed), same_order)
