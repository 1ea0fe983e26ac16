"""The pages that decoding sequences take as they grow, counted without looking at each.

A sequence with `tokens` keys holds `ceil(tokens / page_size)` pages, so it takes a page once in
`page_size` tokens. All sequences of a rank grow alike: the tokens of a sequence are its key plus a
level that they share. How many take a page at a level is a count per residue.
"""

from bisect import bisect_right
from itertools import accumulate


class PageGrowth:
    """Counts of sequences by the level, modulo the page size, after which they take a page."""

    __slots__ = ("counts", "page_size", "sequences")

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.counts = [0] * page_size
        self.sequences = 0

    def add(self, key: int) -> None:
        """Add a sequence that has `key + level` tokens at each level."""
        self.counts[-key % self.page_size] += 1
        self.sequences += 1

    def remove(self, key: int) -> None:
        """Remove a sequence."""
        self.counts[-key % self.page_size] -= 1
        self.sequences -= 1

    def between(self, level: int, later: int) -> int:
        """Return the pages that all sequences take from a level to a later one."""
        if later - level == 1:
            return self.counts[level % self.page_size]
        periods, rest = divmod(later - level, self.page_size)
        pages = periods * self.sequences
        if rest:
            first = level % self.page_size
            last = first + rest
            pages += sum(self.counts[first:last])
            if last > self.page_size:
                pages += sum(self.counts[: last - self.page_size])
        return pages

    def at_most(self, level: int, later: int) -> int:
        """Return the pages that all sequences take at most from a level to a later one."""
        return -(-(later - level) // self.page_size) * self.sequences

    def reach(self, level: int, later: int, free: int) -> int:
        """Return the last level up to `later` that `free` pages suffice for.

        The pages of `level` are taken already.
        """
        if self.at_most(level, later) <= free:
            return later
        periods, free = divmod(free, self.sequences)
        first = level % self.page_size
        turned = accumulate(self.counts[first:] + self.counts[:first])
        return min(later, level + periods * self.page_size + bisect_right(list(turned), free))
