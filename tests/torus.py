"""Routes and seconds on a torus, in parts."""

from tpusim.costs.attention import kernel_flops, visited_keys
from tpusim.costs.collective import adding_seconds
from tpusim.costs.compute import copy_bandwidth, hbm_seconds
from tpusim.costs.convolution import (
    LAUNCHES,
    LOADED,
    channel_seconds,
    depthwise_seconds,
    full_batch,
    is_depthwise,
    pass_matmuls,
    reads_again,
    stored_elements,
    tile_stretch,
)
from tpusim.costs.route import received_bytes
from tpusim.network.paths import link_loads, run_loads, shortest_moves, shortest_routes

__all__ = [
    "LAUNCHES",
    "LOADED",
    "adding_seconds",
    "channel_seconds",
    "copy_bandwidth",
    "depthwise_seconds",
    "full_batch",
    "hbm_seconds",
    "is_depthwise",
    "kernel_flops",
    "link_loads",
    "pass_matmuls",
    "reads_again",
    "received_bytes",
    "run_loads",
    "shortest_moves",
    "shortest_routes",
    "stored_elements",
    "tile_stretch",
    "visited_keys",
]
