"""The heap of random buffers, beside one that looks at every gap."""

import random

import pytest

from tpusim.program import HeapBuffer, packed_bytes
from tpusim.program.heap import ALIGNMENT


def random_buffers(pick: random.Random) -> list[HeapBuffer]:
    """Return buffers of few sizes, so that gaps are often alike and often filled."""
    starts = [pick.randrange(60) for _ in range(pick.randrange(1, 120))]
    sizes = [pick.choice([0, 1, ALIGNMENT, 3000, pick.randrange(1, 9000)]) for _ in starts]
    ends = [start + pick.randrange(30) for start in starts]
    return [HeapBuffer(*each) for each in zip(starts, ends, sizes, strict=True)]


def smallest_gap(taken: list[tuple[int, int]], size: int) -> int:
    """Return the start of the smallest gap that holds so much, or the end of all chunks."""
    ends = [0, *(high for _, high in sorted(taken))]
    gaps = [(low - end, end) for end, (low, _) in zip(ends, sorted(taken), strict=False)]
    return min((each for each in gaps if each[0] >= size), default=(0, ends[-1]))[1]


@pytest.mark.parametrize("seed", range(60))
def test_each_buffer_goes_into_the_smallest_gap_that_holds_it(seed: int) -> None:
    buffers = random_buffers(random.Random(seed))
    placed: list[tuple[int, int, int]] = []
    top = 0
    for start, end, nbytes in sorted(buffers, key=lambda each: each[:2]):
        size = -(-int(nbytes) // ALIGNMENT) * ALIGNMENT
        placed = [chunk for chunk in placed if chunk[2] >= start]
        if size:
            low = smallest_gap([chunk[:2] for chunk in placed], size)
            placed.append((low, low + size, end))
            top = max(top, low + size)
    assert packed_bytes(buffers) == top
