"""All-to-all: bytes on each link when every chip sends to every other of its group.

Messages take shortest paths, along one dimension after another. Of two equally short paths each
takes half of the bytes, so ties never burden one direction.
"""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from tpusim.hardware import Span, Topology
from tpusim.network.groups import Chips, dimension_sizes, groups, on_torus
from tpusim.network.paths import (
    Loads,
    Walkers,
    link_loads,
    link_shape,
    longest_first,
    shortest_moves,
    shortest_routes,
)


def exchange_loads(spans: Sequence[Span], topology: Topology) -> Loads:
    """Return the load of each link when each chip spreads one byte over its group and itself.

    On a regular torus each dimension is loaded as if its lines exchanged alone: of the messages
    that pass along a line, equally many start and end at each pair of its positions. On a twisted
    torus the paths of all pairs are followed, in all orders of the dimensions.
    """
    spans = on_torus(spans)
    if topology.twisted:
        return _followed_loads(groups(spans, topology), topology)
    total = np.zeros(link_shape(topology))
    for dim in dimension_sizes(spans):
        others = [1 if at != dim else length for at, length in enumerate(topology.dims)]
        total[dim] = _loads_along(dim, spans, topology).reshape(2, *others)
    return total


def _loads_along(dim: int, spans: Sequence[Span], topology: Topology) -> NDArray[np.float64]:
    """Return the loads of a dimension of a torus without a twist, [direction, position].

    Its lines are alike, so one stands for all, whatever the other dimensions are.
    """
    along = tuple(span._replace(dim=0) for span in spans if span.dim == dim)
    return _line_loads(along, Topology((topology.dims[dim],), (topology.wrap[dim],)))


@lru_cache(maxsize=1024)
def _line_loads(spans: tuple[Span, ...], line: Topology) -> NDArray[np.float64]:
    """Return the loads of exchanges among the groups on one line, [direction, position].

    One byte per chip, half of it by either of two equally short ways.
    """
    members = groups(spans, line)
    size, length = members.shape[1], line.chips
    starts, ends = ordered_pairs(members)
    sums = np.cumsum(np.full(len(starts), 0.5 / size))
    added = np.concatenate([np.zeros(1), sums])
    total = np.zeros((2, length))
    for prefer in (1, -1):
        moves = shortest_moves(starts, ends, line, prefer)[:, 0]
        total = total + [
            _crossing(starts[:, 0], sign * moves, sign, added, length) for sign in (1, -1)
        ]
    return total


def _crossing(
    starts: NDArray[np.intp],
    moves: NDArray[np.intp],
    sign: int,
    added: NDArray[np.float64],
    length: int,
) -> NDArray[np.float64]:
    """Return the loads of messages in one direction of a line, by position.

    moves: links that each message crosses in this direction; of those that go the other way, less
        than one.
    sign: of the direction.
    added: the bytes of a number of messages, added up one by one, as floats depend on the order.
    length: positions of the line.
    """
    most = int(moves.max(initial=0))
    who = moves > 0
    kinds = np.bincount(starts[who] * (most + 1) + moves[who], minlength=length * (most + 1))
    left = kinds.reshape(length, most + 1)[:, ::-1].cumsum(axis=1)[:, -2::-1]
    places = np.arange(length)
    total = np.zeros(length)
    for crossed in range(most):
        total = total + added[left[(places - sign * crossed) % length, crossed]]
    return total


def ordered_pairs(members: Chips) -> tuple[Chips, Chips]:
    """Return the starts and ends of all ordered pairs within each group."""
    size, dims = members.shape[1:]
    starts = np.repeat(members, size, axis=1).reshape(-1, dims)
    ends = np.tile(members, (1, size, 1)).reshape(-1, dims)
    return starts, ends


def _followed_loads(members: Chips, topology: Topology) -> Loads:
    """Return the loads of all pairs, an equal share on each shortest path and order of dimensions.

    A torus looks alike from every chip: if all exchange with all, each link of a dimension and
    direction carries what one chip's messages put on all such links together.
    """
    whole = len(members) == 1
    ends = _from_first(members) if whole else ordered_pairs(members)
    starts, moves, weights = all_shortest_moves(*ends, topology)
    orders = list(permutations(range(members.shape[2])))
    share = weights / len(orders) / members.shape[1]
    total = np.zeros(link_shape(topology))
    for order in orders:
        total += link_loads(starts, moves, share, topology, order)
    if whole:
        places = tuple(range(2, total.ndim))
        total = np.broadcast_to(total.sum(axis=places, keepdims=True), total.shape)
    return total


def exchange_walkers(spans: Sequence[Span], topology: Topology) -> Iterator[Walkers]:
    """Yield the messages of an exchange, with those on the same shortest path as one.

    On a torus without a twist they take the longer dimensions first, and half of those half way
    round go either way; on a twisted one an equal share goes in each order of the dimensions.
    """
    members = groups(on_torus(spans), topology)
    starts, moves, weights = all_shortest_moves(*ordered_pairs(members), topology)
    orders = [longest_first(topology)]
    if topology.twisted:
        orders = [*permutations(range(len(topology.dims)))]
    share = weights / len(orders) / members.shape[1]
    return (Walkers(starts, moves, share, order) for order in orders)


def _from_first(members: Chips) -> tuple[Chips, Chips]:
    """Return the starts and ends of the pairs that start at the first chip."""
    ends = members[0]
    return np.broadcast_to(ends[:1], ends.shape), ends


def all_shortest_moves(
    starts: Chips, ends: Chips, topology: Topology
) -> tuple[Chips, Chips, NDArray[np.float64]]:
    """Return start and moves of every shortest path of every pair, and its share of the bytes."""
    offsets, which = np.unique(ends - starts, axis=0, return_inverse=True)
    known = [shortest_routes(tuple(offset), topology) for offset in offsets.tolist()]
    counts = np.array([len(moves) for moves in known])
    flat = np.array([move for moves in known for move in moves], dtype=np.intp)
    firsts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    many = counts[which]
    pair = np.repeat(np.arange(len(starts)), many)
    nth = np.arange(len(pair)) - np.repeat(np.cumsum(many) - many, many)
    return starts[pair], flat[firsts[which][pair] + nth], np.repeat(1 / many, many)


def exchange_paths(
    spans: Sequence[Span], topology: Topology
) -> tuple[list[tuple[float, int]], float]:
    """Return the paths of an exchange, bytes and remaining hops, and the power that joins them.

    Near messages leave first, so the last of all comes from the farthest chip. At its own first
    link it waits for what its chip sends before it, and has its whole path ahead. The busiest link
    is busy all the time; when it is done, the last message has one hop to go on a ring, where all
    links end together, and half of its path on a line, whose middle is the busiest. On one line
    alone it waits at each next link for all that this link carries, and the latest of these decides
    to the picosecond. On tori and meshes it waits a little at many links if both terms are equally
    long; their power sum, with an exponent fitted to single messages, is within 6.5 % of them on
    tori of up to 64 chips, and within 5 % on most (`tests/analytic`).
    """
    spans = on_torus(spans)
    members = groups(spans, topology)[:1]
    longest, far, rings = _longest_moves(members, topology)
    ends = np.where(rings, 1, (longest + 1) // 2)
    most = _busiest_along(spans, topology)
    busiest = max((float(load), int(end)) for load, end in zip(most, ends, strict=True))
    size = members.shape[1]
    links = int(np.where(rings, 2, 1)[longest > 0].sum())
    found = [busiest, ((size - 1) / size / links, far)]
    if links == 1 and far == size - 1:
        return [*found, *_line_paths(size)], math.inf
    return found, _joining_power(
        far, uneven=bool(rings.any()) and len(set(longest[longest > 0])) > 1
    )


def _busiest_along(spans: Sequence[Span], topology: Topology) -> NDArray[np.float64]:
    """Return the load of the busiest link of each dimension in an exchange."""
    if topology.twisted:
        loads = exchange_loads(spans, topology)
        return np.asarray(loads.reshape(len(loads), -1).max(axis=1))
    most = np.zeros(len(topology.dims))
    for dim in dimension_sizes(spans):
        most[dim] = _loads_along(dim, spans, topology).max()
    return most


def _longest_moves(
    members: Chips, topology: Topology
) -> tuple[NDArray[np.intp], int, NDArray[np.bool_]]:
    """Return the most links along each dimension, the most in all, and which dimensions are rings.

    All are of shortest paths. On a regular torus every two positions along a dimension occur with
    any along the others. A dimension is a ring for the group if some of its paths go round rather
    than straight. A twisted torus looks alike from every chip, so paths from the first to all are
    all paths.
    """
    if topology.twisted:
        whole = members.shape[1] == topology.chips
        moves = np.abs(
            shortest_moves(*(_from_first(members) if whole else ordered_pairs(members)), topology)
        )
        longest = moves.max(axis=0)
        return longest, int(moves.sum(axis=1).max()), longest < np.ptp(members[0], axis=0)
    lines = [_line(members, dim) for dim in range(members.shape[2])]
    longest = np.max([_link_counts(line, topology, 1).max(axis=0) for line in lines], axis=0)
    rings = np.array([_goes_round(line, topology) for line in lines])
    return longest, int(longest.sum()), rings


def _link_counts(line: Chips, topology: Topology, prefer: int) -> Chips:
    return np.abs(shortest_moves(*ordered_pairs(line), topology, prefer))


def _goes_round(line: Chips, topology: Topology) -> bool:
    starts, ends = ordered_pairs(line)
    moves = (shortest_moves(starts, ends, topology, prefer) for prefer in (1, -1))
    return any(bool((each != ends - starts).any()) for each in moves)


def _line(members: Chips, dim: int) -> Chips:
    """Return the positions of a group along one dimension, as a group."""
    places = np.unique(members[0, :, dim])
    line = np.zeros((1, len(places), members.shape[2]), dtype=np.intp)
    line[0, :, dim] = places
    return line


def _joining_power(far: int, *, uneven: bool) -> float:
    """Return the exponent that joins the times of the busiest link and of the longest path.

    The fewer hops, the fewer links to wait at; on uneven tori the short rings wait for the long.
    """
    if far <= 2:
        return math.inf
    return 3 if uneven else 3 + 10 / far


def _line_paths(size: int) -> list[tuple[float, int]]:
    """Return the paths of a line of n: link p carries (p+1)(n-1-p)/n, with p hops before it."""
    return [((p + 1) * (size - 1 - p) / size, size - 1 - p) for p in range(1, (size - 1) // 2 + 1)]
