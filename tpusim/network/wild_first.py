"""Routes around broken links: wild hops first, then the order of the dimensions.

The tables of a slice hold one route for each pair of chips. A route takes its longer dimensions
first, and half way round it goes in the + direction from an even coordinate and in the - direction
from an odd one. Around broken links a packet may first take one wild hop along each dimension, in
any order, and then the route from where it is: so two chips whose link is broken reach each other
by a hop aside, one along and one back (Zu et al., "Resiliency at Scale", NSDI 2024, section 5). How
the tables choose among such routes is not published but for its aim, the throughput of an
all-to-all on the whole slice. Here an all-to-all balances its loads (`balanced`), and neighbours
take the shortest route that begins aside.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import permutations, product

import numpy as np
from numpy.typing import NDArray

from tpusim.hardware import DirectedLink, Topology
from tpusim.network.groups import Chips
from tpusim.network.paths import Loads, longest_first, shortest_moves

LinkSet = frozenset[int]
"""Numbers of links, see `paths`."""

Ways = NDArray[np.intp]
"""Routes as numbers of links, [..., hop]; after its last hop, a route has the number of links."""

Prefix = tuple[tuple[int, int], ...]
"""Wild hops: dimension and sign of each."""

ROUNDS = 12
"""Rounds in which each route is chosen anew, at most."""

MOST_CHOICES = 20_000
"""Routes that are chosen in all rounds together, but for two rounds."""

SHARPNESS = 24.0, 800.0
"""The exponent of the price of a load in the first round and in the last."""

STEEPEST = 600.0
"""The largest exponent of a price: the sum of several is still a number."""


def link_numbers(links: Iterable[DirectedLink], topology: Topology) -> LinkSet:
    """Return the numbers of links that are given by dimension, direction and chip."""
    return frozenset(
        (2 * dim + side) * topology.chips + int(np.ravel_multi_index(at, topology.dims))
        for dim, side, at in links
    )


@lru_cache(maxsize=8)
def prefixes(dims: int) -> tuple[Prefix, ...]:
    """Return all wild hops that a route may begin with: none, or up to one a dimension.

    >>> len(prefixes(3))
    79
    """
    return tuple(
        tuple(zip(along, signs, strict=True))
        for count in range(dims + 1)
        for along in permutations(range(dims), count)
        for signs in product((1, -1), repeat=count)
    )


def wild_first_ways(starts: Chips, ends: Chips, topology: Topology) -> Ways:
    """Return the routes between pairs of chips, one for each prefix, [pair, prefix, hop].

    starts, ends: coordinates, [pair, dimension].
    """
    every = prefixes(len(topology.dims))
    most = len(topology.dims) + sum(length // 2 + 1 for length in topology.dims)
    found = np.full((len(starts), len(every), most), link_count(topology))
    for number, prefix in enumerate(every):
        place = np.zeros(len(starts), dtype=np.intp)
        for who, links in _hops(starts, ends, prefix, topology):
            found[who, number, place[who]] = links
            place[who] += 1
    longest = int((found < link_count(topology)).any(axis=(0, 1)).sum())
    return np.asarray(found[..., :longest])


def link_count(topology: Topology) -> int:
    """Return the links of a torus, each direction for itself."""
    return 2 * len(topology.dims) * topology.chips


def chip_numbers(chips: Chips, topology: Topology) -> NDArray[np.intp]:
    """Return the numbers of chips; chips: coordinates, [chip, dimension]."""
    return np.asarray(np.ravel_multi_index(tuple(chips.T), topology.dims))


def coordinates(numbers: NDArray[np.intp], topology: Topology) -> Chips:
    """Return the coordinates of chips, [chip, dimension]."""
    return np.stack(np.unravel_index(numbers, topology.dims), axis=1)


@lru_cache(maxsize=16)
def neighbours(topology: Topology) -> NDArray[np.intp]:
    """Return the number of the chip one link away from each, [dimension, direction, chip]."""
    chips = coordinates(np.arange(topology.chips), topology)
    every = range(len(topology.dims))
    steps = [[topology.step(chips, dim, sign) for sign in (1, -1)] for dim in every]
    return np.array([[chip_numbers(each, topology) for each in both] for both in steps])


def _hops(
    starts: Chips, ends: Chips, prefix: Prefix, topology: Topology
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Yield the pairs whose route crosses a link, and its number, hop by hop, wild hops first."""
    at, every = chip_numbers(starts, topology), np.arange(len(starts))
    for dim, sign in prefix:
        side = int(sign < 0)
        yield every, (2 * dim + side) * topology.chips + at
        at = neighbours(topology)[dim, side, at]
    moves = _ordered_moves(coordinates(at, topology), ends, topology)
    yield from crossings(at, moves, longest_first(topology), topology)


def crossings(
    at: NDArray[np.intp], moves: Chips, order: Sequence[int], topology: Topology
) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Yield which walkers cross a link, and its number, one link after another.

    at: the number of the chip that each walker starts from; in the end, that of its last chip.
    moves: links along each dimension, signed, [walker, dimension].
    """
    for dim, side in product(order, (0, 1)):
        left = -moves[:, dim] if side else moves[:, dim]
        for crossed in range(int(left.max(initial=0))):
            who = np.flatnonzero(left > crossed)
            yield who, (2 * dim + side) * topology.chips + at[who]
            at[who] = neighbours(topology)[dim, side, at[who]]


def _ordered_moves(starts: Chips, ends: Chips, topology: Topology) -> Chips:
    """Return the moves of the route in the order of the dimensions; half way round, by parity."""
    if topology.twisted:
        sizes = tuple(2 * length for length in topology.dims)
        keys = np.ravel_multi_index(tuple((ends - starts + topology.dims).T), sizes)
        known, which = np.unique(keys, return_inverse=True)
        offsets = np.stack(np.unravel_index(known, sizes), axis=1) - topology.dims
        return shortest_moves(np.zeros_like(offsets), offsets, topology)[which]
    moves = shortest_moves(starts, ends, topology)
    half = 2 * np.abs(moves) == topology.dims
    return np.where(half & (starts % 2 == 1), -moves, moves)


def aside(starts: Chips, ends: Chips, out: LinkSet, topology: Topology) -> Ways:
    """Return a route around broken links for each pair, the same in each collective.

    It is the shortest; of equally short ones the first hop is along a dimension in which the ends
    agree, and wild hops go in the + direction from even coordinates. A pair without a route takes
    the way round each broken link on its route, one after another.
    """
    ways = wild_first_ways(starts, ends, topology)
    lost = np.isin(ways, list(out)).any(axis=-1)
    cost = np.where(lost, np.inf, (ways < link_count(topology)).sum(axis=-1))
    for number, prefix in enumerate(prefixes(len(topology.dims))):
        for place, (dim, sign) in enumerate(prefix):
            towards = (starts[:, dim] != ends[:, dim]) & (place == 0)
            uneven = (starts[:, dim] % 2 == 0) != (sign > 0)
            cost[:, number] += 0.1 * towards + 0.01 * uneven
    return chosen_ways(ways, cost.argmin(axis=1), out, topology)


def chosen_ways(ways: Ways, chosen: NDArray[np.intp], out: LinkSet, topology: Topology) -> Ways:
    """Return the chosen route of each pair, [pair, hop], with a way round each link that is out.

    Such a link is on a route only if the pair has no other.
    """
    taken = ways[np.arange(len(ways)), chosen]
    lost = np.isin(taken, list(out)).any(axis=1)
    if not lost.any():
        return taken
    rows = [
        [each for link in _real(way, topology) for each in around(link, out, topology)]
        for way in taken.tolist()
    ]
    found = np.full((len(rows), max(map(len, rows))), link_count(topology))
    for pair, row in enumerate(rows):
        found[pair, : len(row)] = row
    return found


@lru_cache(maxsize=1024)
def around(link: int, out: LinkSet, topology: Topology) -> tuple[int, ...]:
    """Return the links that lead to where a link does: itself, or those around it if it is out."""
    if link not in out:
        return (link,)
    number, place = divmod(link, topology.chips)
    dim, side = divmod(number, 2)
    ends = coordinates(np.array([place, neighbours(topology)[dim, side, place]]), topology)
    (way,) = aside(ends[:1], ends[1:], out, topology).tolist()
    return tuple(_real(way, topology))


def _real(way: Sequence[int], topology: Topology) -> list[int]:
    """Return a route without what it is filled with."""
    return [link for link in way if link < link_count(topology)]


def balanced(
    ways: Ways, weights: NDArray[np.float64], beside: Loads, out: LinkSet
) -> NDArray[np.intp]:
    """Return the route of each pair with which the busiest link carries as little as it can.

    ways: of each pair, [pair, prefix, hop].
    weights: bytes of each pair.
    beside: the load of all other pairs on each link.
    out: links that carry nothing.

    Pairs choose one after another, and anew in each round, the route of the lowest price: that of a
    link grows exponentially with its load, the steeper the later the round. The offline search of
    the tables is an integer program, of which this is the coordinate descent.
    """
    links = beside.size
    loads = np.append(beside.reshape(-1), -np.inf)
    loads[list(out)] = np.inf
    scale, rounds = float(beside.max()), min(ROUNDS, MOST_CHOICES // max(1, len(ways)))
    chosen = np.full(len(ways), -1)
    best, least = chosen, np.inf
    for sharp in np.geomspace(*SHARPNESS, max(2, rounds)):
        for pair, (mine, weight) in enumerate(zip(ways, weights.tolist(), strict=True)):
            if chosen[pair] >= 0:
                loads[mine[chosen[pair]]] -= weight
            steep = sharp * ((loads[mine] + weight) / scale - 1)
            prices = np.where(np.isposinf(steep), np.inf, np.exp(np.minimum(steep, STEEPEST)))
            chosen[pair] = prices.sum(axis=1).argmin()
            loads[mine[chosen[pair]]] += weight
        busiest = loads[:links][np.isfinite(loads[:links])].max()
        if busiest < least - 1e-12:
            best, least = chosen.copy(), busiest
    return best
