"""Permutes to the next and to the previous device in the order of the mesh.

A loop of collective matmuls sends to the partitions numbered before and after its own. Where an
axis is on several dimensions of the torus, or on a line, these need not be neighbours: `(0, 3)` is
followed by `(1, 0)`. Each message takes a shortest way, and all of them share the links.
"""

import numpy as np

from tpusim.hardware import Span, Topology
from tpusim.network.groups import Chips, groups, on_torus
from tpusim.network.paths import Loads, link_loads, link_paths, shortest_moves

EACH_WAY = 0.5
"""The part of the bytes that goes in each of the two directions."""


def order_loads(spans: tuple[Span, ...], topology: Topology) -> Loads:
    """Return the bytes on each link, by byte that a device sends both ways together."""
    starts, moves = _order_moves(spans, topology)
    weights = np.full(len(starts), EACH_WAY)
    return link_loads(starts, moves, weights, topology, range(len(topology.dims)))


def order_paths(spans: tuple[Span, ...], topology: Topology) -> list[tuple[float, int]]:
    """Return the paths of the messages: the bytes of the busiest link, and the longest way."""
    _, moves = _order_moves(spans, topology)
    most, hops = float(order_loads(spans, topology).max()), int(np.abs(moves).sum(axis=1).max())
    return [(most, hops)] if most <= EACH_WAY else [(most, 1), (EACH_WAY, hops)]


def order_links(spans: tuple[Span, ...], topology: Topology) -> list[tuple[int, ...]]:
    """Return the numbers of the links that each message crosses, in order."""
    starts, moves = _order_moves(spans, topology)
    return link_paths(starts, moves, topology, range(len(topology.dims)))


def _order_moves(spans: tuple[Span, ...], topology: Topology) -> tuple[Chips, Chips]:
    """Return the starts and the moves of the messages of all groups, in both directions."""
    chips = groups(on_torus(spans), topology)
    ends = np.concatenate([np.roll(chips, shift, axis=1) for shift in (-1, 1)])
    starts = np.concatenate([chips, chips]).reshape(-1, chips.shape[-1])
    return starts, shortest_moves(starts, ends.reshape(-1, chips.shape[-1]), topology)
