"""Collectives whose messages are all sent at once, without a schedule."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from tpusim.hardware import Span, Topology
from tpusim.network.all_to_all import exchange_loads, exchange_paths
from tpusim.network.mesh_order import order_loads, order_paths
from tpusim.network.paths import Loads

WaysAndPower: TypeAlias = tuple[list[tuple[float, int]], float]
"""Bytes and hops of each path, and the power of the sum that joins them; infinite for the most."""


@dataclass(frozen=True, slots=True)
class SentAtOnce:
    """The loads and the paths of messages that wait for no other.

    loads: returns the bytes on each link, by byte of the tensor.
    paths: returns the paths, and the power of the sum that joins them.
    text: in words; the first `{}` stands for the chips, the other for the dimensions.
    halved: each of a chip's two devices sends half of the bytes over the links that they share.
    """

    loads: Callable[[tuple[Span, ...], Topology], Loads]
    paths: Callable[[tuple[Span, ...], Topology], WaysAndPower]
    text: str
    halved: bool


EXCHANGE = SentAtOnce(
    exchange_loads, exchange_paths, "every pair of {} through {{}} by shortest ways", halved=False
)
IN_MESH_ORDER = SentAtOnce(
    order_loads,
    lambda spans, topology: (order_paths(spans, topology), math.inf),
    "to the next and the previous of {} in the order of the mesh, through {{}}",
    halved=True,
)
