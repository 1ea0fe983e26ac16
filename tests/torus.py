"""Routes and seconds on a torus, in parts."""

from tpusim.costs.collective import adding_seconds, route_seconds
from tpusim.costs.compute import copy_bandwidth, group_seconds, kernel_flops, visited_keys
from tpusim.costs.convolution import (
    LAUNCHES,
    depthwise_seconds,
    full_batch,
    is_depthwise,
    pass_matmuls,
    reads_again,
    stored_elements,
    tile_stretch,
)
from tpusim.costs.route import received_bytes, route
from tpusim.network.paths import link_loads, link_shape, run_loads, shortest_moves, shortest_routes

__all__ = [
    "LAUNCHES",
    "adding_seconds",
    "copy_bandwidth",
    "depthwise_seconds",
    "full_batch",
    "group_seconds",
    "is_depthwise",
    "kernel_flops",
    "link_loads",
    "link_shape",
    "pass_matmuls",
    "reads_again",
    "received_bytes",
    "route",
    "route_seconds",
    "run_loads",
    "shortest_moves",
    "shortest_routes",
    "stored_elements",
    "tile_stretch",
    "visited_keys",
]
