"""The tree of repetition of a folded loop's records.

The engine keeps a repeated part once, with its levels of repetition. Consecutive entries under one
level are one block. Blocks are separated by time: the entries of one block are within one period,
and the next block cannot begin before two have passed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tpusim.engine import CallTimes, Level, MemoryChange, Record, RepeatLevel

T = TypeVar("T", Record, MemoryChange)


@dataclass(frozen=True, slots=True)
class RepeatedBlock(Generic[T]):
    """`entries`, repeated `level.repeats` times; their times are those of the first repetition."""

    level: RepeatLevel
    entries: "tuple[T | RepeatedBlock[T], ...]"


def record_blocks(records: Sequence[Record]) -> tuple[Record | RepeatedBlock[Record], ...]:
    """Return the tree of repetition of records that are in the order of their ends."""
    return _blocks(records, lambda record: record.end_ps, 0)


def change_blocks(
    changes: Sequence[MemoryChange],
) -> tuple[MemoryChange | RepeatedBlock[MemoryChange], ...]:
    """Return the tree of repetition of changes that are in order of time."""
    return _blocks(changes, lambda change: change.time_ps, 0)


def _blocks(
    entries: Sequence[T], time: Callable[[T], int], depth: int
) -> tuple[T | RepeatedBlock[T], ...]:
    found: list[T | RepeatedBlock[T]] = []
    at = 0
    while at < len(entries):
        if len(entries[at].repeats) == depth:
            found.append(entries[at])
            at += 1
            continue
        level, begin = entries[at].repeats[depth], at
        if isinstance(level, CallTimes):
            raise ValueError(f"{entries[at]} stands for several calls")
        until = time(entries[at]) + level.period_ps
        while (
            at < len(entries) and _within(entries[at], depth, level) and time(entries[at]) <= until
        ):
            at += 1
        found.append(RepeatedBlock(level, _blocks(entries[begin:at], time, depth + 1)))
    return tuple(found)


def _within(entry: Record | MemoryChange, depth: int, level: Level) -> bool:
    return entry.repeats[depth : depth + 1] == (level,)


def block_extent(tree: Sequence[Record | RepeatedBlock[Record]]) -> tuple[int, int]:
    """Return the start of the first record and the end of the last, with all repetitions."""
    starts, ends = [], []
    for entry in tree:
        if isinstance(entry, RepeatedBlock):
            start, end = block_extent(entry.entries)
            end += (entry.level.repeats - 1) * entry.level.period_ps
        else:
            start, end = entry.start_ps, entry.end_ps
        starts.append(start)
        ends.append(end)
    return min(starts), max(ends)
