"""All-to-all: what each link carries when every chip sends to every other of its group.

Messages take shortest ways, along one dimension after another. Where two ways are as short, half
of the bytes take each: ties never burden one direction.
"""

import math
from collections.abc import Sequence
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from tpusim.hardware import Span, Topology
from tpusim.network.algorithm import dimension_sizes
from tpusim.network.groups import Chips, groups, on_torus
from tpusim.network.paths import Loads, link_loads, link_shape, minimal_ways, shortest_moves


def exchange_loads(spans: Sequence[Span], topology: Topology) -> Loads:
    """Bytes on each link when each chip spreads one byte evenly over its group, itself included.

    On a regular torus each dimension is loaded as if its lines exchanged alone: of the messages
    that pass along a line, as many start and end at each pair of its places. On a twisted torus
    the ways of all pairs are followed, in all orders of the dimensions.
    """
    spans = on_torus(spans)
    if topology.twisted:
        return _followed(groups(spans, topology), topology)
    total = np.zeros(link_shape(topology))
    for dim in dimension_sizes(spans):
        total += _along(groups([span for span in spans if span.dim == dim], topology), topology)
    return total


def _along(lines: Chips, topology: Topology) -> Loads:
    """The loads of exchanges among the chips of each line, one byte a chip."""
    size = lines.shape[1]
    starts, ends = pairs(lines)
    weights = np.full(len(starts), 0.5 / size)
    order = range(lines.shape[2])
    return sum(
        (
            link_loads(
                starts, shortest_moves(starts, ends, topology, side), weights, topology, order
            )
            for side in (1, -1)
        ),
        start=np.zeros(()),
    )


def pairs(members: Chips) -> tuple[Chips, Chips]:
    """The two ends of all ordered pairs within each group."""
    size, dims = members.shape[1:]
    starts = np.repeat(members, size, axis=1).reshape(-1, dims)
    ends = np.tile(members, (1, size, 1)).reshape(-1, dims)
    return starts, ends


def _followed(members: Chips, topology: Topology) -> Loads:
    """The loads of all pairs, with every shortest way and order of dimensions an equal share.

    A torus looks alike from every chip: where all exchange with all, the links of a dimension and
    direction each carry what one chip's messages put on all of them together.
    """
    whole = len(members) == 1
    ends = _from_first(members) if whole else pairs(members)
    starts, moves, weights = every_way(*ends, topology)
    orders = list(permutations(range(members.shape[2])))
    share = weights / len(orders) / members.shape[1]
    total = np.zeros(link_shape(topology))
    for order in orders:
        total += link_loads(starts, moves, share, topology, order)
    if whole:
        places = tuple(range(2, total.ndim))
        total = np.broadcast_to(total.sum(axis=places, keepdims=True), total.shape)
    return total


def _from_first(members: Chips) -> tuple[Chips, Chips]:
    """The two ends of the pairs that start at the first chip."""
    ends = members[0]
    return np.broadcast_to(ends[:1], ends.shape), ends


def every_way(
    starts: Chips, ends: Chips, topology: Topology
) -> tuple[Chips, Chips, NDArray[np.float64]]:
    """Start and moves of every shortest way of every pair, and its share of the pair's bytes."""
    offsets, which = np.unique(ends - starts, axis=0, return_inverse=True)
    known = [minimal_ways(tuple(offset), topology) for offset in offsets.tolist()]
    counts = np.array([len(ways) for ways in known])
    flat = np.array([way for ways in known for way in ways], dtype=np.intp)
    firsts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    many = counts[which]
    pair = np.repeat(np.arange(len(starts)), many)
    nth = np.arange(len(pair)) - np.repeat(np.cumsum(many) - many, many)
    return starts[pair], flat[firsts[which][pair] + nth], np.repeat(1 / many, many)


def waits(spans: Sequence[Span], topology: Topology) -> tuple[list[tuple[float, int]], float]:
    """Bytes to wait for at some link with the hops that are left, and the power that joins them.

    Near messages leave first, so the last of all comes from the farthest chip. At its own first
    link it waits for what its chip sends before it, and has all of its way to go. The busiest link
    is busy all the time; when it is done, the last message has one hop to go on a ring, where all
    links end together, and half of its way on a line, whose middle is the busiest. On one line
    alone it waits at each next link for all that this link carries, and the latest of these decides
    to the picosecond. On tori and meshes it waits a little at many links where both terms are as
    long; their power sum, with an exponent that was fitted to single messages, is within 6.5 % of
    them on tori of up to 64 chips, and within 5 % on most (`tests/analytic`).
    """
    spans = on_torus(spans)
    members = groups(spans, topology)[:1]
    longest, way, rings = _longest(members, topology)
    ends = np.where(rings, 1, (longest + 1) // 2)
    loads = exchange_loads(spans, topology)
    most = loads.reshape(len(longest), -1).max(axis=1)
    busiest = max((float(load), int(end)) for load, end in zip(most, ends, strict=True))
    size = members.shape[1]
    links = int(np.where(rings, 2, 1)[longest > 0].sum())
    found = [busiest, ((size - 1) / size / links, way)]
    if links == 1 and way == size - 1:
        return [*found, *_line_waits(size)], math.inf
    return found, _power(way, uneven=bool(rings.any()) and len(set(longest[longest > 0])) > 1)


def _longest(members: Chips, topology: Topology) -> tuple[NDArray[np.intp], int, NDArray[np.bool_]]:
    """Links along each dimension on the longest of the shortest ways, on any way, and the rings.

    On a regular torus every two places along a dimension come up with any along the others. A
    dimension is a ring for the group where some of its ways go round rather than straight. A
    twisted torus looks alike from every chip, so ways from the first to all are all ways.
    """
    if topology.twisted:
        whole = members.shape[1] == topology.chips
        moves = np.abs(
            shortest_moves(*(_from_first(members) if whole else pairs(members)), topology)
        )
        longest = moves.max(axis=0)
        return longest, int(moves.sum(axis=1).max()), longest < np.ptp(members[0], axis=0)
    lines = [_line(members, dim) for dim in range(members.shape[2])]
    longest = np.max([_moved(line, topology, 1).max(axis=0) for line in lines], axis=0)
    rings = np.array([_goes_round(line, topology) for line in lines])
    return longest, int(longest.sum()), rings


def _moved(line: Chips, topology: Topology, prefer: int) -> Chips:
    return np.abs(shortest_moves(*pairs(line), topology, prefer))


def _goes_round(line: Chips, topology: Topology) -> bool:
    starts, ends = pairs(line)
    ways = (shortest_moves(starts, ends, topology, prefer) for prefer in (1, -1))
    return any(bool((way != ends - starts).any()) for way in ways)


def _line(members: Chips, dim: int) -> Chips:
    """The places of a group along one dimension, as a group."""
    places = np.unique(members[0, :, dim])
    line = np.zeros((1, len(places), members.shape[2]), dtype=np.intp)
    line[0, :, dim] = places
    return line


def _power(way: int, *, uneven: bool) -> float:
    """The exponent that joins what the busiest link takes with what the longest way takes.

    The fewer hops, the fewer links to wait at; on uneven tori the short rings wait for the long.
    """
    if way <= 2:
        return math.inf
    return 3 if uneven else 3 + 10 / way


def _line_waits(size: int) -> list[tuple[float, int]]:
    """Link p of a line of n carries (p+1)(n-1-p)/n; p hops are behind it."""
    return [((p + 1) * (size - 1 - p) / size, size - 1 - p) for p in range(1, (size - 1) // 2 + 1)]
