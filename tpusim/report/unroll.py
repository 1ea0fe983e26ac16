"""Folded loops, unrolled as far as asked: every repetition, or only the first and the last.

The engine keeps a repeated part once, with its levels of repetition. Entries that stand one after
another under one level are one block. Blocks are told apart by time: the entries of one block lie
within one period, and the next block cannot begin before two have gone by.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from tpusim.engine import Calls, Level, MemoryChange, Record, Repeat

SHORT = 3
"""Blocks of so few repetitions are always shown whole."""


class _Repeating(Protocol):
    @property
    def repeats(self) -> tuple[Level, ...]: ...


T = TypeVar("T", bound=_Repeating)


@dataclass(frozen=True, slots=True)
class Block(Generic[T]):
    """`entries`, made `level.repeats` times; their times are those of the first repetition."""

    level: Repeat
    entries: "tuple[T | Block[T], ...]"


@dataclass(frozen=True, slots=True)
class Gap(Generic[T]):
    """The repetitions of `block` between its first and its last, `shift_ps` after its own times."""

    block: Block[T]
    shift_ps: int


def each_call(records: Iterable[Record], every: bool = True) -> list[Record]:
    """The records of each call by themselves, all in the order of their ends.

    every: all calls; otherwise the first and the last.
    """
    found = []
    for record in records:
        calls, rest = _split(record)
        shifts = list(calls.shifts())
        for shift in shifts if every else dict.fromkeys((0, shifts[-1])):
            start, end = record.start_ps + shift, record.end_ps + shift
            found.append(replace(record, start_ps=start, end_ps=end, repeats=rest))
    return sorted(found, key=lambda record: record.end_ps)


def each_change(changes: Iterable[MemoryChange], every: bool = True) -> list[MemoryChange]:
    """The changes of each call by themselves, all in the order in which they happened.

    Of those at one time, the changes of an earlier call come first.
    every: all calls; otherwise those between the first and the last are two changes each, up to
    their highest level and to their end.
    """
    called: dict[Calls, list[tuple[int, MemoryChange]]] = {}
    for at, change in enumerate(changes):
        calls, rest = _split(change)
        called.setdefault(calls, []).append((at, change._replace(repeats=rest)))
    found = []
    for calls, whole in called.items():
        short = whole if every or calls.repeats < SHORT else _outline(whole)
        ends = (calls.starts_ps[0], calls.starts_ps[-1])
        for begin, shift in zip(calls.starts_ps, calls.shifts(), strict=True):
            for at, change in whole if begin in ends else short:
                time = change.time_ps + shift
                found.append((time, begin, at, change._replace(time_ps=time)))
    return [change for *_, change in sorted(found, key=lambda entry: entry[:3])]


def _outline(changes: Sequence[tuple[int, MemoryChange]]) -> list[tuple[int, MemoryChange]]:
    """The changes of one call as two: up to the highest level, and from there to the end."""
    levels = list(running(change_blocks([change for _, change in changes]), 0, every=False))
    top = max(levels, key=lambda entry: entry[1])
    end, rise = levels[-1]
    at = changes[0][0]
    return [(at, MemoryChange(*top)), (at, MemoryChange(end, rise - top[1]))]


def running(
    tree: "Sequence[MemoryChange | Block[MemoryChange]]", level: int, *, every: bool
) -> Iterator[tuple[int, int]]:
    """Time and level after each change, from `level` on; see `unrolled`."""
    for entry in unrolled(tree, every):
        if isinstance(entry, Gap):
            level += (entry.block.level.repeats - 2) * _rise(entry.block.entries)
        else:
            shift, change = entry
            level += change.bytes
            yield change.time_ps + shift, level


def _rise(tree: "Sequence[MemoryChange | Block[MemoryChange]]") -> int:
    """Bytes by which one run of the entries raises the level."""
    return sum(
        entry.level.repeats * _rise(entry.entries) if isinstance(entry, Block) else entry.bytes
        for entry in tree
    )


def _split(entry: _Repeating) -> tuple[Calls, tuple[Level, ...]]:
    """When an entry is called, once if it is no call's, and the other levels."""
    match entry.repeats:
        case (Calls() as calls, *rest):
            return calls, tuple(rest)
    return Calls((0,)), entry.repeats


def record_blocks(records: Sequence[Record]) -> tuple[Record | Block[Record], ...]:
    """The tree of repetition of records that are in the order of their ends."""
    return _blocks(records, lambda record: record.end_ps, 0)


def change_blocks(
    changes: Sequence[MemoryChange],
) -> tuple[MemoryChange | Block[MemoryChange], ...]:
    """The tree of repetition of changes that are in the order in which they happened."""
    return _blocks(changes, lambda change: change.time_ps, 0)


def _blocks(entries: Sequence[T], time: Callable[[T], int], depth: int) -> tuple[T | Block[T], ...]:
    found: list[T | Block[T]] = []
    at = 0
    while at < len(entries):
        if len(entries[at].repeats) == depth:
            found.append(entries[at])
            at += 1
            continue
        level, begin = entries[at].repeats[depth], at
        if isinstance(level, Calls):
            raise ValueError(f"{entries[at]} stands for several calls")
        until = time(entries[at]) + level.period_ps
        while (
            at < len(entries) and _within(entries[at], depth, level) and time(entries[at]) <= until
        ):
            at += 1
        found.append(Block(level, _blocks(entries[begin:at], time, depth + 1)))
    return tuple(found)


def _within(entry: _Repeating, depth: int, level: Level) -> bool:
    return entry.repeats[depth : depth + 1] == (level,)


def unrolled(
    tree: Sequence[T | Block[T]], every: bool, shift_ps: int = 0
) -> Iterator[tuple[int, T] | Gap[T]]:
    """Each entry with the picoseconds to add to its times, and a `Gap` for what is left out.

    every: all repetitions; otherwise the first and the last of each block.
    """
    for entry in tree:
        if not isinstance(entry, Block):
            yield shift_ps, entry
            continue
        repeats, period = entry.level
        whole = every or repeats <= SHORT
        for turn in range(repeats) if whole else (0, repeats - 1):
            if turn and not whole:
                yield Gap(entry, shift_ps)
            yield from unrolled(entry.entries, every, shift_ps + turn * period)


def extent(tree: Sequence[Record | Block[Record]]) -> tuple[int, int]:
    """When the first of the records starts and the last one ends, all repetitions included."""
    starts, ends = [], []
    for entry in tree:
        if isinstance(entry, Block):
            start, end = extent(entry.entries)
            end += (entry.level.repeats - 1) * entry.level.period_ps
        else:
            start, end = entry.start_ps, entry.end_ps
        starts.append(start)
        ends.append(end)
    return min(starts), max(ends)
