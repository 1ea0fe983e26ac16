"""The experts that the few tokens of a server's step reach, whose weights alone are read."""

from functools import lru_cache
from math import comb
from typing import NamedTuple

from tpusim.graph import EXPERT_BLOCK, ROUTED
from tpusim.partition import Sizes
from tpusim.program import Number


class Groups(NamedTuple):
    """The groups of rows of a grouped matmul on one device, and the rows of each."""

    groups: Number
    rows: Number


def active_groups(local: Number, rows: Number, sizes: Sizes) -> Groups:
    """Return the groups of the busiest device: its experts that some token reaches.

    Each token reaches k of the E experts by chance, so t tokens reach an expert with probability
    `1 - (1 - k / E)^t`. A step takes as long as the device most of whose experts are reached.

    A fused kernel takes a block of each device's tokens at a time, and reads the weights of the
    experts that they reach again for each block (`EXPERT_BLOCK`).

    local: experts of the device.
    rows: of each, on average.

    All experts have as many rows in a graph that is no step of a server.
    """
    tokens = sizes.dims.get(ROUTED)
    if tokens is None or "choice" not in sizes.dims:
        return Groups(local, rows)
    experts, choices = sizes.dims["expert"], sizes.dims["choice"]
    devices = max(1, round(experts / float(local)))
    passes = block_passes(devices, sizes)
    reached = 1 - (1 - choices / experts) ** (tokens / passes)
    count = passes * largest_of(round(float(local)), reached, devices)
    return Groups(count, max(tokens * choices / devices, count) / count)


def block_passes(devices: int, sizes: Sizes) -> int:
    """Return the blocks of tokens that a fused kernel takes one after the other, at least 1.

    devices: that the experts are divided over.
    """
    block = sizes.dims[EXPERT_BLOCK] * devices
    return -(-sizes.dims[ROUTED] // block) if block else 1


@lru_cache(maxsize=4096)
def largest_of(trials: int, chance: float, draws: int) -> float:
    """Return the expected largest of independent binomial draws, at least 1.

    `sum over k of 1 - F(k)^draws`, where F is the distribution of one draw.

    >>> round(largest_of(20, 0.05, 1), 6), round(largest_of(20, 0.05, 8), 2)
    (1.0, 2.52)
    """
    below, found = 0.0, 0.0
    for k in range(trials):
        below += comb(trials, k) * chance**k * (1 - chance) ** (trials - k)
        found += 1 - min(below, 1.0) ** draws
    return max(found, 1.0)
