"""Places of a slice in a pod whose links are fixed: contiguous boxes of hosts, by Monte Carlo."""

from collections.abc import Iterator
from itertools import permutations, product
from math import isqrt, prod
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.hardware import Chip

Dims: TypeAlias = tuple[int, ...]
Up: TypeAlias = NDArray[np.bool_]
"""Which hosts are up, [sample, x, y, ...]."""

SAMPLES = 4096
"""States of a pod that are drawn: the standard error of a probability is at most 0.8 %."""


def host_block(chip: Chip) -> Dims:
    """Return the chips of a host along each dimension of the pod: 2 x 2 (x 1), or 2 x 4."""
    return (*host_sides(chip.host_chips), 1)[: len(chip.pod_shape)]


def host_sides(chips: int) -> tuple[int, int]:
    """Return the chips along the short and the long side of a host of so many."""
    short = next(side for side in range(isqrt(chips), 0, -1) if chips % side == 0)
    return short, chips // short


def host_cables(block: Dims) -> int:
    """Return the cables of a host in a torus, each of which it shares with a neighbour by half.

    Links between the chips of a host are traces of its board.

    >>> host_cables((2, 2, 1)), host_cables((2, 4))
    (8, 6)
    """
    return sum(prod(block) // side for side in block)


def host_grid(chip: Chip) -> Dims:
    """Return the hosts along each dimension of a pod."""
    pairs = zip(chip.pod_shape, host_block(chip), strict=True)
    return tuple(max(1, chips // side) for chips, side in pairs)


def boxes(chip: Chip, shape: Dims) -> Iterator[Dims]:
    """Yield the hosts along each dimension that a slice takes, in each orientation."""
    block = host_block(chip)
    turned = sorted(set(permutations(shape)))
    found = (tuple(-(-n // b) for n, b in zip(each, block, strict=True)) for each in turned)
    yield from dict.fromkeys(found)


def draw_hosts(grid: Dims, samples: int = SAMPLES, seed: int = 0) -> NDArray[np.float32]:
    """Return a number from 0 to 1 for each host, [sample, x, y, ...]; it is up if that is below
    its availability."""
    return np.random.default_rng(seed).random((samples, *grid), np.float32)


def whole_boxes(up: Up, box: Dims) -> Up:
    """Return where a box of hosts that are all up begins, around the ends of the torus if need be.

    box: hosts along each dimension, at most those of the pod.
    """
    for axis, length in enumerate(box, start=1):
        span = 1
        while span < length:
            step = min(span, length - span)
            up = up & np.roll(up, -step, axis)
            span += step
    return up


def most_slices(up: Up, box: Dims) -> NDArray[np.int64]:
    """Return how many disjoint boxes find all their hosts up, [sample].

    The boxes are those of a grid, whose origin is the best one.
    """
    grid = up.shape[1:]
    most = np.zeros(len(up), np.int64)
    if any(length > size for length, size in zip(box, grid, strict=True)):
        return most
    whole = whole_boxes(up, box)
    pairs = list(zip(grid, box, strict=True))
    origins = (range(_origins(size, length)) for size, length in pairs)
    for origin in product(*origins):
        steps = (
            (start + length * np.arange(size // length)) % size
            for start, (size, length) in zip(origin, pairs, strict=True)
        )
        found = whole[np.ix_(np.arange(len(up)), *steps)]
        np.maximum(most, found.reshape(len(up), -1).sum(axis=1), out=most)
    return most


def _origins(size: int, length: int) -> int:
    """Return how many origins of a grid of boxes along a dimension differ."""
    if length == size:
        return 1
    return size if size % length else length
