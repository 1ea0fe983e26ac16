"""The pages of a rank, and the blocks of prompts that they keep for later requests."""

from collections import OrderedDict

from tpusim.server.sequence import Sequence


class CachedPages:
    """Pages of a rank: held by sequences, idle with a block that no sequence uses, or empty.

    Idle blocks are lost when their pages are needed: the one that was released first goes first,
    and of a sequence's blocks the last.

    free: pages that are idle or empty.
    per_block: pages of a block.
    holders: sequences that use each cached block.
    """

    __slots__ = ("block", "free", "holders", "idle", "page_size", "per_block")

    def __init__(self, pages: int, page_size: int, block: int = 0) -> None:
        self.free = pages
        self.page_size = page_size
        self.block = block
        self.per_block = block // page_size
        self.holders: dict[int, int] = {}
        self.idle: OrderedDict[int, None] = OrderedDict()

    def of(self, tokens: int) -> int:
        """Return the pages that hold so many tokens."""
        return -(-tokens // self.page_size)

    def emptied(self, pages: int) -> "CachedPages":
        """Return pages as these are, none of which is in use."""
        return CachedPages(pages, self.page_size, self.block)

    def found(self, sequence: Sequence) -> tuple[int, int]:
        """Return the tokens of a sequence that are cached, and the idle pages among theirs.

        The last token is computed in any case, as the next one follows from it.
        """
        hits = idle = 0
        most = (sequence.tokens - 1) // self.page_size * self.page_size
        for key in sequence.blocks:
            holders = self.holders.get(key)
            if holders is None or hits * self.block >= most:
                break
            hits += 1
            idle += not holders
        return min(hits * self.block, most), idle * self.per_block

    def in_whole_blocks(self, sequence: Sequence, cached: int, idle: int) -> tuple[int, int]:
        """Return `found` without its last block, if a part of that is used and nobody holds it.

        A part of a block takes all of its pages, and the tokens after it take others: in a cache
        with as many pages as the sequence has, it would wait for one more for ever.
        """
        whole = cached // self.block
        if cached == whole * self.block or self.holders[sequence.blocks[whole]]:
            return cached, idle
        return whole * self.block, idle - self.per_block

    def use(self, sequence: Sequence, cached: int) -> None:
        """Let a sequence use its first `cached` tokens, which are cached."""
        for key in sequence.blocks[: -(-cached // self.block)]:
            if not self.holders[key]:
                del self.idle[key]
                self.free -= self.per_block
            self.holders[key] += 1
            sequence.held.append(key)
        sequence.shared = sequence.pages = cached // self.page_size

    def take(self, pages: int) -> None:
        """Take pages that are free."""
        self.free -= pages
        while self.idle and self.free < len(self.idle) * self.per_block:
            key, _ = self.idle.popitem(last=False)
            del self.holders[key]

    def keep(self, sequence: Sequence, first: int, last: int) -> None:
        """Cache the blocks that a step completes as it computes the tokens from first to last."""
        for key in sequence.blocks[first // self.block : last // self.block]:
            if key not in self.holders:
                self.holders[key] = 1
                sequence.held.append(key)
                sequence.shared += self.per_block

    def release(self, sequence: Sequence, pages: int) -> None:
        """Release the `pages` of a sequence; its blocks stay until their pages are needed."""
        self.free += pages - sequence.shared
        for key in reversed(sequence.held):
            self.holders[key] -= 1
            if not self.holders[key]:
                self.idle[key] = None
                self.free += self.per_block
        sequence.held.clear()
        sequence.shared = sequence.pages = 0
