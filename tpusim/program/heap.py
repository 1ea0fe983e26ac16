"""The TPU compiler's heap: where buffers lie in HBM, and how far up they reach.

The compiler takes buffers in the order of its schedule, of one instruction's those first that it
frees first. Each goes into the smallest gap between those that are alive where it fits, or above
them all, and stays there; so gaps are left that the sum of what is alive does not show. Observed in
programs of libtpu 0.0.42.1 for v2 to 7x: `docs/compiler.md` has how near it comes.
"""

from bisect import insort
from collections.abc import Iterable
from typing import NamedTuple

ALIGNMENT = 512
"""Bytes to whose multiples buffers are rounded up: the least that a buffer assignment has."""


class HeapBuffer(NamedTuple):
    """A buffer in the heap: its bytes, and the first and the last instruction that it lives in."""

    start: int
    end: int
    bytes: float


def packed_bytes(buffers: Iterable[HeapBuffer]) -> int:
    """Return how far up the heap of these buffers reaches, in bytes."""
    taken: list[tuple[int, int, int]] = []
    top = now = 0
    for start, end, nbytes in sorted(buffers, key=lambda each: each[:2]):
        if start > now:
            now = start
            taken = [chunk for chunk in taken if chunk[2] >= now]
        size = -(-int(nbytes) // ALIGNMENT) * ALIGNMENT
        low = _smallest_gap(taken, size)
        insort(taken, (low, low + size, end))
        top = max(top, low + size)
    return top


def _smallest_gap(taken: Iterable[tuple[int, int, int]], size: int) -> int:
    """Return the start of the smallest gap below the chunks that holds so much, or their end."""
    end, least, best = 0, 0, -1
    for low, high, _ in taken:
        gap = low - end
        if gap >= size and (best < 0 or gap < least):
            least, best = gap, end
        end = high
    return end if best < 0 else best
