"""Unrolling of folded loops: every repetition, or only the first and the last.

The tree of repetition of the records is made by `results.repeated_blocks`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from tpusim.engine import CallTimes, Level, MemoryChange, Record
from tpusim.results.repeated_blocks import RepeatedBlock, change_blocks

SHORT_BLOCK = 3
"""Blocks of at most this many repetitions are always shown whole."""

T = TypeVar("T", Record, MemoryChange)


@dataclass(frozen=True, slots=True)
class HiddenRepetitions(Generic[T]):
    """The repetitions of `block` between its first and its last, `shift_ps` after its own times."""

    block: RepeatedBlock[T]
    shift_ps: int


def split_calls(records: Iterable[Record], every: bool = True) -> list[Record]:
    """Return the records of each call separately, in the order of their ends.

    every: True for all calls, False for the first and the last.
    """
    found = []
    for record in records:
        calls, rest = _split(record)
        shifts = list(calls.shifts())
        for shift in shifts if every else dict.fromkeys((0, shifts[-1])):
            start, end = record.start_ps + shift, record.end_ps + shift
            found.append(replace(record, start_ps=start, end_ps=end, repeats=rest))
    return sorted(found, key=lambda record: record.end_ps)


def split_changes(changes: Iterable[MemoryChange], every: bool = True) -> list[MemoryChange]:
    """Return the changes of each call separately, in order of time, earlier calls first.

    every: True for all calls; False merges each call between the first and the last into two
        changes, up to its highest level and to its end.
    """
    called: dict[CallTimes, list[tuple[int, MemoryChange]]] = {}
    for at, change in enumerate(changes):
        calls, rest = _split(change)
        called.setdefault(calls, []).append((at, change._replace(repeats=rest)))
    found = []
    for calls, whole in called.items():
        short = whole if every or calls.repeats < SHORT_BLOCK else _outline(whole)
        ends = (calls.starts_ps[0], calls.starts_ps[-1])
        for begin, shift in zip(calls.starts_ps, calls.shifts(), strict=True):
            for at, change in whole if begin in ends else short:
                time = change.time_ps + shift
                found.append((time, begin, at, change._replace(time_ps=time)))
    return [change for *_, change in sorted(found, key=lambda entry: entry[:3])]


def _outline(changes: Sequence[tuple[int, MemoryChange]]) -> list[tuple[int, MemoryChange]]:
    """Return the changes of one call as two: up to the highest level, and from there to the end."""
    levels = list(running_levels(change_blocks([change for _, change in changes]), 0, every=False))
    top = max(levels, key=lambda entry: entry[1])
    end, rise = levels[-1]
    at = changes[0][0]
    return [(at, MemoryChange(*top)), (at, MemoryChange(end, rise - top[1]))]


def running_levels(
    tree: "Sequence[MemoryChange | RepeatedBlock[MemoryChange]]", level: int, *, every: bool
) -> Iterator[tuple[int, int]]:
    """Yield time and level after each change, from `level` on; see `unroll_blocks`."""
    for entry in unroll_blocks(tree, every):
        if isinstance(entry, HiddenRepetitions):
            level += (entry.block.level.repeats - 2) * _rise(entry.block.entries)
        else:
            shift, change = entry
            level += change.bytes
            yield change.time_ps + shift, level


def _rise(tree: "Sequence[MemoryChange | RepeatedBlock[MemoryChange]]") -> int:
    """Return the bytes by which one run of the entries raises the level."""
    return sum(
        entry.level.repeats * _rise(entry.entries)
        if isinstance(entry, RepeatedBlock)
        else entry.bytes
        for entry in tree
    )


def _split(entry: Record | MemoryChange) -> tuple[CallTimes, tuple[Level, ...]]:
    """Return the call times of an entry, a single 0 outside calls, and the other levels."""
    match entry.repeats:
        case (CallTimes() as calls, *rest):
            return calls, tuple(rest)
    return CallTimes((0,)), entry.repeats


def unroll_blocks(
    tree: Sequence[T | RepeatedBlock[T]], every: bool, shift_ps: int = 0
) -> Iterator[tuple[int, T] | HiddenRepetitions[T]]:
    """Yield each entry with the picoseconds to add to its times, and `HiddenRepetitions`.

    every: True for all repetitions, False for the first and the last of each block.
    """
    for entry in tree:
        if not isinstance(entry, RepeatedBlock):
            yield shift_ps, entry
            continue
        repeats, period = entry.level
        whole = every or repeats <= SHORT_BLOCK
        for turn in range(repeats) if whole else (0, repeats - 1):
            if turn and not whole:
                yield HiddenRepetitions(entry, shift_ps)
            yield from unroll_blocks(entry.entries, every, shift_ps + turn * period)
