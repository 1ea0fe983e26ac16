"""The TPU compiler's heap: where buffers lie in HBM, and how far up they reach.

The compiler takes buffers in the order of its schedule, of one instruction's those first that it
frees first. Each goes into the smallest gap between those that are alive where it fits, or above
them all, and stays there; so gaps are left that the sum of what is alive does not show. Where this
does not fit, it places the largest buffers first, as XLA's `GlobalDecreasingSizeBestFitHeap`, which
leaves next to none. Observed in programs of libtpu 0.0.42.1 for v2 to 7x: `docs/compiler.md` has
how near it comes.
"""

from bisect import insort
from collections.abc import Iterable
from math import inf
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
    too_much = inf  # no gap holds as much, until buffers end
    for start, end, nbytes in sorted(buffers, key=lambda each: each[:2]):
        if start > now:
            now = start
            taken = [chunk for chunk in taken if chunk[2] >= now]
            too_much = inf
        size, end_of_all = _aligned(nbytes), taken[-1][1] if taken else 0
        low = end_of_all if size >= too_much else _smallest_gap(taken, size)
        too_much = min(too_much, size) if low == end_of_all else too_much
        insort(taken, (low, low + size, end))
        top = max(top, low + size)
    return top


def largest_first_bytes(buffers: Iterable[HeapBuffer]) -> int:
    """Return how far up the heap reaches with the largest buffers placed first, in bytes."""
    placed: list[tuple[int, int, int, int]] = []
    for start, end, nbytes in sorted(buffers, key=lambda each: (-each.bytes, *each[:2])):
        size = _aligned(nbytes)
        beside = ((low, high, last) for low, high, first, last in placed
                  if first <= end and last >= start)  # fmt: skip
        low = _smallest_gap(sorted(beside), size)
        placed.append((low, low + size, start, end))
    return max((high for _, high, _, _ in placed), default=0)


def _aligned(nbytes: float) -> int:
    return -(-int(nbytes) // ALIGNMENT) * ALIGNMENT


def _smallest_gap(taken: Iterable[tuple[int, int, int]], size: int) -> int:
    """Return the start of the smallest gap below the chunks that holds so much, or their end.

    taken: chunks by their start; they may overlap.
    """
    end, least, best = 0, 0, -1
    for low, high, _ in taken:
        gap = low - end
        if gap >= size and (best < 0 or gap < least):
            least, best = gap, end
        end = max(end, high)
    return end if best < 0 else best
