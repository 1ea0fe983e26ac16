"""Chains: the order in which a collective passes its data from chip to chip of a group.

A chain that closes is a ring, whose two directions each carry half; one that does not is a line.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from itertools import permutations
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tpusim.hardware import Span, Topology
from tpusim.network.groups import Chips, groups
from tpusim.network.paths import Loads, link_loads, shortest_moves

Numbers = NDArray[np.floating[Any]]


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
    distinct: places in a row that hold different chunks; 0 for all of them (see `twisted_rings`).
    same_order: edges through several dimensions take them in the same order in both directions,
        instead of returning by the same links.
    """

    chips: Chips
    closed: bool
    topology: Topology
    forward: Chips
    backward: Chips
    distinct: int = 0
    same_order: bool = False

    @classmethod
    def of(cls, chips: Chips, closed: bool, topology: Topology) -> "Chain":
        """Return the chain through the chips of each group in their order."""
        ends = np.roll(chips, -1, axis=1)
        starts, ends = (chips, ends) if closed else (chips[:, :-1], ends[:, :-1])
        forward = shortest_moves(starts, ends, topology)
        return cls(chips, closed, topology, forward, -forward)

    @classmethod
    def variants(cls, chips: Chips, topology: Topology) -> "Iterator[Chain]":
        """Yield the ring and the line through the chips, with both routes back if two exist."""
        for closed in (True, False):
            chain = cls.of(chips, closed, topology)
            yield chain
            if (np.count_nonzero(chain.forward, axis=2) > 1).any():
                yield replace(chain, same_order=True)

    @property
    def first(self) -> "Chain":
        """The chain of the first group alone."""
        return replace(
            self, chips=self.chips[:1], forward=self.forward[:1], backward=self.backward[:1]
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
        case ChainMove.GATHER | ChainMove.SCATTER if chain.closed:
            return np.full(edges, (n - 1) / 2), np.full(edges, (n - 1) / 2)
        case ChainMove.GATHER:
            return place + 1, n - 1 - place
        case ChainMove.SCATTER:
            return n - 1 - place, place + 1
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


def chain_hops(move: ChainMove, chain: Chain) -> int:
    """Return the links that are crossed one after another until the last chip has its data.

    A gather on a ring of n passes n/2 edges in turn, of which the longest such run decides; on a
    line all of them. A shift passes one.
    """
    hops = chain.edge_hops
    match move:
        case ChainMove.SHIFT | ChainMove.HALO | ChainMove.ONWARD | ChainMove.STEP:
            return int(hops.max())
        case ChainMove.GATHER | ChainMove.SCATTER if chain.closed:
            return _longest_run(hops, max(1, chain.chunks // 2))
        case ChainMove.MIRROR:
            ways = (mirror_path(chain, place) for place in range(chain.length))
            return max(int(hops[:, [edge for _, edge in way]].sum(axis=1).max()) for way in ways)
        case ChainMove.SPREAD if chain.closed:
            return _longest_run(hops, chain.length - 1)
    return int(hops.sum(axis=1).max())


def _longest_run(hops: NDArray[np.intp], count: int) -> int:
    """Return the most links on `count` edges in a row, round the ring."""
    turned = np.concatenate([hops, hops[:, : count - 1]], axis=1)
    sums = np.cumsum(np.pad(turned, ((0, 0), (1, 0))), axis=1)
    return int((sums[:, count:] - sums[:, :-count]).max())


@lru_cache(maxsize=256)
def dimension_chain(dim: int, spans: tuple[Span, ...], topology: Topology) -> Chain:
    """Return the chain along one dimension of a group: a ring if that loads no link more."""
    along = sorted((span for span in spans if span.dim == dim), key=lambda span: -span.stride)
    chips = groups(along, topology)
    return best_chain([Chain.of(chips, closed, topology) for closed in (True, False)])


@lru_cache(maxsize=256)
def one_chain(spans: tuple[Span, ...], topology: Topology) -> Chain:
    """Return the best chain through all chips of a group, over all dimensions that it covers.

    Candidates pass row after row in the orders of `traversals`, along each dimension first. The
    best loads its links least; then the shortest run of hops decides, then the order of candidates.
    """
    dims = sorted({span.dim for span in spans})
    if len(dims) == 1:
        return dimension_chain(dims[0], spans, topology)
    chips = _grid(dims, spans, topology)
    return best_chain(
        chain
        for turned in permutations(range(len(dims)))
        for ordered in traversals(chips, turned)
        for chain in Chain.variants(ordered, topology)
    )


def best_chain(chains: Iterable[Chain]) -> Chain:
    """Return the chain whose links carry least in a gather, then the one of the fewest hops."""
    best, least = None, (np.inf, np.inf)
    for chain in chains:
        if _least_load(chain) >= least[0]:
            continue
        cost = (
            float(move_loads(ChainMove.GATHER, chain).max()),
            float(chain_hops(ChainMove.GATHER, chain)),
        )
        if cost < least:
            best, least = chain, cost
        if least <= ((chain.length - 1) / 2, chain.length // 2):
            break
    assert best is not None
    return best


def _least_load(chain: Chain) -> float:
    """Return a bound of the busiest link's load in a gather: the mean over all links in use."""
    hops = np.abs(chain.forward)
    used = np.count_nonzero(hops.any(axis=(0, 1)))
    edges = float(hops.sum()) * (chain.length - 1) / 2 if chain.closed else 0.0
    return edges / max(1, int(used) * chain.topology.chips) - 1e-9


def _grid(dims: Sequence[int], spans: Sequence[Span], topology: Topology) -> Chips:
    """Return the groups with their members along each of `dims`, [group, *members, dimension]."""
    along = [
        span
        for dim in dims
        for span in sorted((s for s in spans if s.dim == dim), key=lambda s: -s.stride)
    ]
    sizes = [prod(span.size for span in spans if span.dim == dim) for dim in dims]
    chips = groups(along, topology)
    return chips.reshape(len(chips), *sizes, -1)


def traversals(grid: Chips, turned: Sequence[int]) -> Iterator[Chips]:
    """Yield the chips of each group in three orders, the last of the `turned` dimensions fastest.

    Row by row (a helix, if rows wrap); every other row backwards (a snake); and a snake that leaves
    out the first column and returns through it (a comb, which closes without wraps).
    """
    count = len(grid)
    turned_grid = grid.transpose(0, *(1 + dim for dim in turned), grid.ndim - 1)
    yield turned_grid.reshape(count, -1, turned_grid.shape[-1])
    snake = _snake(turned_grid)
    yield snake
    yield _comb(_snake(turned_grid[..., 0, :]), snake, turned_grid.shape[-2])


def _snake(grid: Chips) -> Chips:
    """Return [group, rows, ..., dimension] flattened, every other row of each level backwards."""
    if grid.ndim == 3:
        return grid
    inner = [_snake(grid[:, row]) for row in range(grid.shape[1])]
    return np.concatenate(
        [row if at % 2 == 0 else row[:, ::-1] for at, row in enumerate(inner)], axis=1
    )


def _comb(column: Chips, snake: Chips, width: int) -> Chips:
    """Return the snake over all columns but the first, then back up the first."""
    many = column.shape[1]
    lines = snake.reshape(len(snake), many, width, -1)
    teeth = [lines[:, at, 1:] if at % 2 == 0 else lines[:, at, :-1] for at in range(many)]
    return np.concatenate([*teeth, column[:, ::-1]], axis=1)
