"""Pallas matmuls of a measured table: a step of the grid, and a pipeline of such steps."""

import re
from typing import Any

from tpusim.costs.compute import array_seconds, hbm_seconds, vector_seconds
from tpusim.hardware import Device, load_chip
from tpusim.partition.sizes import DTYPE_BYTES

ACCUMULATION = 2
"""Vector operations for each element of a block's result: it is read, added and written in f32."""


def mxu_block(measured: Any) -> float:
    """Return the predicted seconds of `one grid step MxKxN DTYPE`, all of it in VMEM."""
    found = re.search(r"\b(\d+)x(\d+)x(\d+) (\w+)", measured.params)
    if not found:
        raise ValueError(f"{measured.params!r} has no block such as 512x512x1024 f32")
    m, k, n = map(int, found.groups()[:3])
    return block_seconds(m, k, n, found[4], load_chip(measured.chip).device)


def block_seconds(m: int, k: int, n: int, dtype: str, device: Device) -> float:
    """Return the seconds of a block: its array, then the sum that it adds to."""
    added = vector_seconds(ACCUMULATION * m * n, device)
    return float(array_seconds(1, m, k, n, dtype, device) + added)


def pallas_matmul(measured: Any) -> float:
    """Return the predicted seconds of `DTYPE m=M k=K n=N ... bmA bkB bnC`.

    Operands are read for each tile of the other's. Copies run beside the blocks if all operands
    have two buffers, else before them.
    """
    found = re.match(r"(\w+) m=(\d+) k=(\d+) n=(\d+)", measured.params)
    tiles = re.search(r"bm(\d+) bk(\d+) bn(\d+)", measured.params)
    if not found or not tiles:
        raise ValueError(f"{measured.params!r} has no m, k, n, bm, bk and bn")
    if found[1] not in DTYPE_BYTES:
        raise ValueError(f"dtype {found[1]!r} is none of {', '.join(DTYPE_BYTES)}")
    device, item = load_chip(measured.chip).device, DTYPE_BYTES[found[1]]
    (m, k, n), (bm, bk, bn) = (map(int, some) for some in (found.groups()[1:], tiles.groups()))
    across, along, down = (-(-size // tile) for size, tile in ((n, bn), (k, bk), (m, bm)))
    copies = hbm_seconds(item * (m * k * across + k * n * down), item * m * n, device)
    steps = across * along * down
    blocks = steps * (block_seconds(bm, bk, bn, found[1], device) + device.costs.kernel_step)
    alone = "single-buffered" in measured.params
    together = copies + blocks if alone else max(copies, blocks)
    return float(together + device.costs.op_launch)
