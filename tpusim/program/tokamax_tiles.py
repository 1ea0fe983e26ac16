"""The tiles that Tokamax's grouped kernels choose by the shapes of their operands, as on 7x.

The library has a table of shapes whose tiles were searched (`tokamax_tiles.csv`, from tokamax
0.0.12, `_src/ops/ragged_dot/pallas_mosaic_tpu.py`, `GMM_TILING_TUNED_LUT` and the two beside it).
For other shapes it takes whole sides, which are halved one after the other until the blocks fit
into the kernel's memory (0.0.17, `_get_heuristics_config`; earlier chips take tiles of 128).
"""

import csv
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Literal

import numpy as np

from tpusim.program.grouped_matmul import LANES
from tpusim.program.numeric import Number, largest, smallest

KERNEL_BYTES = 0.75 * 32 * 2**20
"""Bytes that blocks may take: three quarters of half of 7x's VMEM of 64 MiB."""

ROW_TILE = 1024
ITEM = 2.0
"""Bytes of an element of a block; 8-bit ones count as much."""

BUFFERS, SUMS = 2, 3
"""Blocks of an operand that are held at once, and blocks of the result with its sums."""

_HALVINGS = 12
"""Enough for a side of 524,288."""

Pass = Literal["forward", "rows", "weights"]


@cache
def _searched() -> Mapping[tuple[str, ...], tuple[int, int, int]]:
    """Return the tiles that the library's table has, by rows, k, n, groups, 8 bits and pass."""
    text = files("tpusim.program").joinpath("tokamax_tiles.csv").read_text("utf-8")
    _, *lines = csv.reader(text.splitlines())
    return {tuple(line[:6]): (int(line[6]), int(line[7]), int(line[8])) for line in lines}


def tokamax_tiles(
    rows: Number,
    k: Number,
    n: Number,
    direction: Pass = "forward",
    groups: Number = 0,
    eight_bit: bool = False,
) -> tuple[Number, Number, Number]:
    """Return the tiles of m, k and n of a kernel, of which k is summed.

    rows: of all groups; of `weights` they are what is summed.
    groups, eight_bit: of the operands, for the table; arrays of plans have none of it.
    direction: `forward`; `rows` for the gradient of the rows, whose k and n are the n and k of the
        forward kernel; or `weights` for that of the matrices, [k, n] each.

    Forward tiles of rows are halved first, then columns, then what is summed; for the gradient of
    the rows what is summed goes before the columns, and for that of the matrices the rows last.
    """
    shape = (rows, k, n, groups)
    if not any(isinstance(one, np.ndarray) for one in shape):
        known = (*(f"{one:.0f}" for one in shape), str(int(eight_bit)), direction)
        if known in _searched():
            return _searched()[known]
    sides = {"m": smallest(rows, ROW_TILE), "k": k, "n": n}
    orders = {"forward": "mnk", "rows": "mkn", "weights": "knm"}
    takes = _weight_bytes if direction == "weights" else _row_bytes
    for side in orders[direction]:
        sides |= {side: _halved(sides, side, takes)}
    return sides["m"], sides["k"], sides["n"]


def _row_bytes(m: Number, k: Number, n: Number) -> Number:
    return ITEM * (BUFFERS * k * (m + n) + SUMS * m * n)


def _weight_bytes(m: Number, k: Number, n: Number) -> Number:
    return ITEM * (BUFFERS * m * (k + n) + SUMS * k * n)


def _halved(
    sides: dict[str, Number], side: str, takes: Callable[[Number, Number, Number], Number]
) -> Number:
    """Return a side halved, in whole lanes, until all blocks fit or it is 128."""
    tile = sides[side]
    for _ in range(_HALVINGS):
        m, k, n = (sides | {side: tile}).values()
        over = takes(m, k, n) - KERNEL_BYTES
        too_large = smallest(1, largest(0, over))
        half = largest(LANES, tile // 2 // LANES * LANES)
        tile = tile + too_large * (smallest(tile, half) - tile)
    return tile
