"""Collectives whose messages are all sent at once, without a schedule.

Each message takes a shortest way, and all of them share the links. Among them are permutes in the
order of the mesh: a loop of collective matmuls sends to the partitions numbered before and after
its own, which need not be neighbours where an axis is on several dimensions of the torus, or on a
line: `(0, 3)` is followed by `(1, 0)`.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from tpusim.hardware import Span, Topology
from tpusim.network.all_to_all import exchange_loads, exchange_paths, exchange_walkers
from tpusim.network.groups import Chips, groups, on_torus
from tpusim.network.paths import Loads, Walkers, link_loads, link_paths, shortest_moves

EACH_WAY = 0.5
"""The part of the bytes that goes in each of the two directions."""


def order_loads(spans: tuple[Span, ...], topology: Topology) -> Loads:
    """Return the bytes on each link, by byte that a device sends both ways in mesh order."""
    starts, moves = _order_moves(spans, topology)
    weights = np.full(len(starts), EACH_WAY)
    return link_loads(starts, moves, weights, topology, range(len(topology.dims)))


def order_walkers(spans: tuple[Span, ...], topology: Topology) -> list[Walkers]:
    """Return the messages to the next and the previous device in mesh order."""
    starts, moves = _order_moves(spans, topology)
    return [Walkers(starts, moves, np.full(len(starts), EACH_WAY), range(len(topology.dims)))]


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


WaysAndPower: TypeAlias = tuple[list[tuple[float, int]], float]
"""Bytes and hops of each path, and the power of the sum that joins them; infinite for the most."""


@dataclass(frozen=True, slots=True)
class SentAtOnce:
    """The loads and the paths of messages that wait for no other.

    loads: returns the bytes on each link, by byte of the tensor.
    paths: returns the paths, and the power of the sum that joins them.
    text: in words; the first `{}` stands for the chips, the other for the dimensions.
    halved: each of a chip's two devices sends half of the bytes over the links that they share.
    walkers: returns the messages one by one.
    evenly: around broken links they take routes that balance the loads.
    """

    loads: Callable[[tuple[Span, ...], Topology], Loads]
    paths: Callable[[tuple[Span, ...], Topology], WaysAndPower]
    text: str
    halved: bool
    walkers: Callable[[tuple[Span, ...], Topology], Iterable[Walkers]]
    evenly: bool


EXCHANGE = SentAtOnce(
    exchange_loads,
    exchange_paths,
    "every pair of {} through {{}} by shortest ways",
    halved=False,
    walkers=exchange_walkers,
    evenly=True,
)
IN_MESH_ORDER = SentAtOnce(
    order_loads,
    lambda spans, topology: (order_paths(spans, topology), math.inf),
    "to the next and the previous of {} in the order of the mesh, through {{}}",
    halved=True,
    walkers=order_walkers,
    evenly=False,
)
