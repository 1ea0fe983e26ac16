"""The links between two chips, by dimension-ordered shortest paths.

A link is numbered by its place in an array [dimension, direction (0 is +, 1 is -), *coordinates of
the chip that it leaves]; the two directions of a cable are two links.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpusim.hardware import Topology
from tpusim.network.groups import Chips

Loads = NDArray[np.float64]
"""The load of each link, [dimension, direction, *coordinates]."""

Moves = tuple[int, ...]
"""Links to cross along each dimension, signed."""


class Walkers(NamedTuple):
    """Messages that cross the same dimensions one after another.

    starts, moves: coordinates and signed links, [message, dimension].
    weights: bytes of each.
    order: of the dimensions.
    """

    starts: Chips
    moves: Chips
    weights: NDArray[np.float64]
    order: Sequence[int]


def link_shape(topology: Topology) -> tuple[int, ...]:
    """Return the shape of an array with one entry per link."""
    return (len(topology.dims), 2, *topology.dims)


def longest_first(topology: Topology) -> tuple[int, ...]:
    """Return the dimensions in the order in which a route takes them."""
    return tuple(sorted(range(len(topology.dims)), key=lambda dim: -topology.dims[dim]))


def shortest_moves(starts: Chips, ends: Chips, topology: Topology, prefer: int = 1) -> Chips:
    """Return the links to cross along each dimension, signed, on a shortest path.

    prefer: the direction, 1 or -1, along a dimension if both directions are equally short.
    """
    if topology.twisted:
        offsets = (ends - starts).reshape(-1, len(topology.dims)).tolist()
        routes = [_straightest_route(tuple(offset), topology, prefer) for offset in offsets]
        return np.array(routes, dtype=np.intp).reshape(starts.shape)
    moves = ends - starts
    for dim, (length, wraps) in enumerate(zip(topology.dims, topology.wrap, strict=True)):
        if wraps:
            ahead = prefer * moves[..., dim] % length
            moves[..., dim] = prefer * np.where(2 * ahead > length, ahead - length, ahead)
    return moves


def _straightest_route(offset: Moves, topology: Topology, prefer: int) -> Moves:
    """Return the shortest route with the fewest links along dimensions in which the ends agree."""

    def beside(route: Moves) -> int:
        return sum(abs(links) for links, apart in zip(route, offset, strict=True) if not apart)

    routes = sorted(shortest_routes(offset, topology), reverse=prefer > 0)
    return min(routes, key=beside)


@lru_cache(maxsize=8192)
def shortest_routes(offset: Moves, topology: Topology) -> tuple[Moves, ...]:
    """Return every shortest route to the chip `offset` away, in order.

    Routes to one chip differ by rounds: going once round a dimension leads back or, on a twisted
    torus, to where its twist shifts.
    """
    routes = np.array(offset, dtype=np.intp) + _rounds(topology)
    links = np.abs(routes).sum(axis=1)
    return tuple(sorted({tuple(route) for route in routes[links == links.min()].tolist()}))


@lru_cache(maxsize=64)
def _rounds(topology: Topology) -> Chips:
    """Return the moves that lead back to where they start, up to two rounds of each dimension."""
    turns = [range(-2, 3) if wraps else (0,) for wraps in topology.wrap]
    once = np.diag(topology.dims) - np.array([topology.twist(d) for d in range(len(turns))])
    return np.asarray(np.array(list(product(*turns)), dtype=np.intp) @ once)


def walk(
    starts: Chips, moves: Chips, topology: Topology, order: Sequence[int]
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Walk from each start along its moves, one dimension after another, one link at a time.

    Yields which of the walkers cross a link, and the number of that link.
    """
    at = starts.copy()
    for dim in order:
        for side, sign in enumerate((1, -1)):
            left = sign * moves[:, dim]
            for crossed in range(int(left.max(initial=0))):
                who = np.flatnonzero(left > crossed)
                yield who, _link_number(at[who], dim, side, topology)
                at[who] = topology.step(at[who], dim, sign)


def _link_number(at: Chips, dim: int, side: int, topology: Topology) -> NDArray[np.intp]:
    places = np.ravel_multi_index(tuple(at.T), topology.dims)
    return np.asarray((2 * dim + side) * topology.chips + places, dtype=np.intp)


def link_loads(
    starts: Chips,
    moves: Chips,
    weights: NDArray[np.floating[Any]],
    topology: Topology,
    order: Sequence[int],
) -> Loads:
    """Return the sum over walkers of their weights on each link that they cross."""
    total = np.zeros(2 * len(topology.dims) * topology.chips)
    for who, links in walk(starts, moves, topology, order):
        total += np.bincount(links, weights[who], len(total))
    return total.reshape(link_shape(topology))


def run_loads(
    starts: Chips,
    moves: Chips,
    weights: NDArray[np.floating[Any]],
    topology: Topology,
    order: Sequence[int],
) -> Loads:
    """Return `link_loads` of very many walkers on a torus without a twist, whatever their hops.

    Along a dimension a walker crosses a run of links; only the two ends of each run are noted, and
    summed up along the line.
    """
    total = np.zeros(link_shape(topology))
    at = starts.copy()
    for dim in order:
        length = topology.dims[dim]
        others = [size for along, size in enumerate(topology.dims) if along != dim]
        for side, sign in enumerate((1, -1)):
            links = sign * moves[:, dim]
            who = np.flatnonzero(links > 0)
            first = at[who, dim] if sign > 0 else (at[who, dim] - links[who] + 1) % length
            place = tuple(np.delete(at[who], dim, axis=1).T)
            line = np.ravel_multi_index(place, others) if others else 0 * who
            ends = line * (2 * length + 1) + first
            size = prod(others) * (2 * length + 1)
            change = np.bincount(ends, weights[who], size)
            change -= np.bincount(ends + links[who], weights[who], size)
            run = change.reshape(-1, 2 * length + 1).cumsum(axis=1)
            loads = (run[:, :length] + run[:, length:-1]).reshape(*others, length)
            total[dim, side] += np.moveaxis(loads, -1, dim)
        at[:, dim] = (at[:, dim] + moves[:, dim]) % length
    return total


def link_paths(
    starts: Chips, moves: Chips, topology: Topology, order: Sequence[int]
) -> list[tuple[int, ...]]:
    """Return the numbers of the links that each walker crosses, in order."""
    paths: list[list[int]] = [[] for _ in starts]
    for who, links in walk(starts, moves, topology, order):
        for walker, link in zip(who.tolist(), links.tolist(), strict=True):
            paths[walker].append(link)
    return [tuple(path) for path in paths]
