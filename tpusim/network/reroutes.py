"""Messages around broken links: new routes for those that are cut, and the loads of all.

Messages whose route is cut take another one (`wild_first`), and put their bytes on its links beside
what these carry anyway.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpusim.hardware import Topology
from tpusim.network.chains import Chain
from tpusim.network.grids import Numbers
from tpusim.network.messages import Message
from tpusim.network.paths import Loads, Walkers, link_loads, link_shape
from tpusim.network.slow_links import LinkMask
from tpusim.network.wild_first import (
    LinkSet,
    Ways,
    aside,
    balanced,
    chip_numbers,
    chosen_ways,
    coordinates,
    crossings,
    link_count,
    neighbours,
    wild_first_ways,
)


class CutPairs(NamedTuple):
    """Pairs of chips whose route crosses a broken link.

    starts, ends: numbers of the chips.
    weights: bytes.
    hops: of the route that is cut.
    """

    starts: NDArray[np.intp]
    ends: NDArray[np.intp]
    weights: NDArray[np.float64]
    hops: NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class Rerouted:
    """The loads of messages that are sent together, around broken links.

    before, now: the load of each link on a healthy torus, and around the broken links,
        [dimension, direction, *coordinates].
    cut: the pairs whose route was cut.
    ways: the route of each, [pair, hop].
    longest: hops of the longest route that any message has on a healthy torus.
    """

    before: Loads
    now: Loads
    cut: CutPairs
    ways: Ways
    longest: int

    def used(self, healthy: LinkMask, own: NDArray[np.bool_], out: LinkSet) -> LinkMask:
        """Return the links on the routes of some chips.

        healthy: those that they use on a healthy torus.
        own: True for each chip that is one of them.
        """
        found = np.append(healthy.reshape(-1), False)
        found[list(out)] = False
        found[self.ways[own[self.cut.starts]]] = True
        return np.asarray(found[:-1].reshape(healthy.shape))

    def further(self, own: NDArray[np.bool_]) -> list[int]:
        """Return the hops that each message of some chips takes more than before, most first."""
        more = self._hops - self.cut.hops
        return sorted(more[own[self.cut.starts]].tolist(), reverse=True)

    @property
    def beyond(self) -> int:
        """The hops of the longest route beyond those of the longest on a healthy torus."""
        return max(0, int(self._hops.max(initial=0)) - self.longest)

    @property
    def _hops(self) -> NDArray[np.intp]:
        return np.asarray((self.ways < self.before.size).sum(axis=1))


def reroute(
    walkers: Iterable[Walkers], before: Loads, topology: Topology, out: LinkSet, *, evenly: bool
) -> Rerouted:
    """Return the loads of messages around broken links.

    walkers: the messages.
    before: their loads on a healthy torus.
    evenly: routes balance the loads; else those of a pair are the same in each collective.
    """
    left, found, longest = before.copy(), list[CutPairs](), 0
    for each in walkers:
        longest = max(longest, int(np.abs(each.moves).sum(axis=1).max(initial=0)))
        hit, pairs = _cut_walkers(each, topology, out)
        left -= link_loads(each.starts[hit], each.moves[hit], pairs.weights, topology, each.order)
        found.append(pairs)
    cut = _together(found, topology)
    left.reshape(-1)[list(out)] = 0
    ways = new_ways(cut, left, topology, out, evenly=evenly)
    added = np.bincount(
        ways.reshape(-1), np.repeat(cut.weights, ways.shape[1]), link_count(topology) + 1
    )
    return Rerouted(before, left + added[:-1].reshape(left.shape), cut, ways, longest)


def new_ways(
    cut: CutPairs, beside: Loads, topology: Topology, out: LinkSet, *, evenly: bool
) -> Ways:
    """Return the routes of pairs whose own are cut, [pair, hop]; beside: the loads of others."""
    starts, ends = coordinates(cut.starts, topology), coordinates(cut.ends, topology)
    if not evenly:
        return aside(starts, ends, out, topology)
    ways = wild_first_ways(starts, ends, topology)
    return chosen_ways(ways, balanced(ways, cut.weights, beside, out), out, topology)


def _cut_walkers(
    walkers: Walkers, topology: Topology, out: LinkSet
) -> tuple[NDArray[np.bool_], CutPairs]:
    """Return which walkers cross a link that is out, and their pairs."""
    broken = np.zeros(link_count(topology), dtype=np.bool_)
    broken[list(out)] = True
    hit = np.zeros(len(walkers.starts), dtype=np.bool_)
    starts = chip_numbers(walkers.starts, topology)
    ends = starts.copy()
    for who, links in crossings(ends, walkers.moves, walkers.order, topology):
        hit[who] |= broken[links]
    hit &= walkers.weights > 0
    hops = np.abs(walkers.moves[hit]).sum(axis=1)
    return hit, CutPairs(starts[hit], ends[hit], walkers.weights[hit], hops)


def _together(found: Sequence[CutPairs], topology: Topology) -> CutPairs:
    """Return the pairs, each once, in order."""
    starts, ends, weights, hops = map(np.concatenate, zip(*found, strict=True))
    keys, first, which = np.unique(
        starts * topology.chips + ends, return_index=True, return_inverse=True
    )
    summed = np.zeros(len(keys))
    np.add.at(summed, which.reshape(-1), weights)
    return CutPairs(keys // topology.chips, keys % topology.chips, summed, hops[first])


def chain_walkers(
    chain: Chain,
    weights: tuple[Numbers, Numbers],
    dims: tuple[int, ...],
    topology: Topology,
) -> Iterator[Walkers]:
    """Yield the messages along a chain on the whole torus, forwards and backwards.

    weights: bytes of each edge in both directions.
    dims: dimensions of the torus that the chain counts from 0.
    """
    for side, each in enumerate(weights):
        starts, moves = chain.edges(side)
        order = [dims[dim] for dim in chain.order(side)]
        sent = Walkers(starts, moves, np.tile(each, len(chain.chips)), order)
        yield everywhere(sent, dims, topology)


def everywhere(walkers: Walkers, dims: tuple[int, ...], topology: Topology) -> Walkers:
    """Return walkers on some dimensions of a torus at all positions along the others."""
    others = [dim for dim in range(len(topology.dims)) if dim not in dims]
    places = np.array(list(product(*(range(topology.dims[dim]) for dim in others))), dtype=np.intp)
    copies, count = len(places), len(walkers.starts)
    starts = np.zeros((copies, count, len(topology.dims)), dtype=np.intp)
    moves = np.zeros_like(starts)
    starts[..., others] = places.reshape(copies, 1, len(others))
    starts[..., list(dims)], moves[..., list(dims)] = walkers.starts, walkers.moves
    shape = (-1, len(topology.dims))
    weights = np.tile(walkers.weights, copies)
    return Walkers(starts.reshape(shape), moves.reshape(shape), weights, walkers.order)


def rerouted_messages(
    messages: Sequence[Message], topology: Topology, out: LinkSet, *, evenly: bool
) -> tuple[Message, ...]:
    """Return the messages of a collective with new routes for those that are cut."""
    broken = [at for at, message in enumerate(messages) if not out.isdisjoint(message.links)]
    if not broken:
        return tuple(messages)
    loads = np.zeros(link_count(topology))
    for message in messages:
        if out.isdisjoint(message.links):
            loads[list(message.links)] += message.share
    cut = _cut_messages([messages[at] for at in broken], topology)
    pairs = _together([cut], topology)
    beside = loads.reshape(link_shape(topology))
    ways = new_ways(pairs, beside, topology, out, evenly=evenly).tolist()
    keys = zip(pairs.starts.tolist(), pairs.ends.tolist(), strict=True)
    known = {
        key: tuple(link for link in way if link < loads.size)
        for key, way in zip(keys, ways, strict=True)
    }
    sent = list(messages)
    for at, *key in zip(broken, cut.starts.tolist(), cut.ends.tolist(), strict=True):
        sent[at] = sent[at]._replace(links=known[*key])
    return tuple(sent)


def _cut_messages(messages: Sequence[Message], topology: Topology) -> CutPairs:
    first = np.array([message.links[0] for message in messages])
    last = np.array([message.links[-1] for message in messages])
    numbers, places = np.divmod(last, topology.chips)
    ends = neighbours(topology)[*np.divmod(numbers, 2), places]
    weights = np.array([message.share for message in messages])
    hops = np.array([len(message.links) for message in messages])
    return CutPairs(first % topology.chips, ends, weights, hops)
