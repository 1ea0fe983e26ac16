"""The TPU compiler's heap: where buffers lie in HBM, and how far up they reach.

The compiler takes buffers in the order of its schedule, of one instruction's those first that it
frees first. Each goes into the smallest gap between those that are alive where it fits, or above
them all, and stays there; so gaps are left that the sum of what is alive does not show. Where this
does not fit, it places the largest buffers first, as XLA's `GlobalDecreasingSizeBestFitHeap`, which
leaves next to none. Observed in programs of libtpu 0.0.42.1 for v2 to 7x: `docs/compiler.md` has
how near it comes.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from heapq import heappop, heappush
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
    heap, top = _Heap(), 0
    alive: list[tuple[int, int, int]] = []  # the last instruction, the start and the end of each
    for start, end, nbytes in sorted(buffers, key=lambda each: each[:2]):
        while alive and alive[0][0] < start:
            heap.free(*heappop(alive)[1:])
        if size := _aligned(nbytes):
            low = heap.take(size)
            heappush(alive, (end, low, low + size))
            top = max(top, low + size)
    return top


class _Heap:
    """The gaps of a heap below its highest chunk, by size and by where they start and end."""

    def __init__(self) -> None:
        self._end = 0
        self._by_size: list[tuple[int, int]] = []
        self._end_from: dict[int, int] = {}
        self._start_up_to: dict[int, int] = {}

    def take(self, size: int) -> int:
        """Take the start of the smallest gap that holds so much, the lowest of equal ones."""
        at = bisect_left(self._by_size, (size, 0))
        if at == len(self._by_size):
            low, self._end = self._end, self._end + size
            return low
        gap, low = self._by_size.pop(at)
        self._remove(low, low + gap)
        if gap > size:
            self._add(low + size, low + gap)
        return low

    def free(self, low: int, high: int) -> None:
        """Free a chunk, whose space joins the gaps beside it or what is above them all."""
        if low in self._start_up_to:
            below = self._start_up_to[low]
            self._drop(below, low)
            low = below
        if high in self._end_from:
            above = self._end_from[high]
            self._drop(high, above)
            high = above
        if high == self._end:
            self._end = low
        else:
            self._add(low, high)

    def _add(self, low: int, high: int) -> None:
        self._end_from[low], self._start_up_to[high] = high, low
        insort(self._by_size, (high - low, low))

    def _drop(self, low: int, high: int) -> None:
        self._remove(low, high)
        del self._by_size[bisect_left(self._by_size, (high - low, low))]

    def _remove(self, low: int, high: int) -> None:
        del self._end_from[low], self._start_up_to[high]


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
