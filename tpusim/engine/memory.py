"""HBM over time: the peak, and the tensors held then.

The engine records each change in the order in which it happens (the end of a task precedes the
start of the next on the core), and the level is integrated here, after the run. A repeated part of
the journal is summed once: from one repetition to the next the level moves by the same amount at
each point, so the highest point is in the first or in the last.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from tpusim.base.lazy import LazyTuple
from tpusim.engine.clock import whole_bytes
from tpusim.engine.instructions import LaneCode
from tpusim.engine.journal import (
    CallTimes,
    JournalEntry,
    Level,
    RepeatedEntries,
    TimedChange,
    flatten,
    repeat_count,
)
from tpusim.program import Alloc

ChangeLog: TypeAlias = Sequence[JournalEntry[TimedChange]]
# The path to a point of a log: at each level the entry and, if it is repeated, which repetition.
LogPath: TypeAlias = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTensor:
    """`count` instances of a tensor with `bytes` in all, of which `padded` hold no data."""

    tensor: str
    category: str
    count: int
    bytes: int
    padded: int


class MemoryChange(NamedTuple):
    """`bytes` taken (freed: negative) at `time_ps`, again at each repetition.

    by_category: the parts of `bytes`, by what the tensors are.
    """

    time_ps: int
    bytes: int
    repeats: tuple[Level, ...] = ()
    by_category: tuple[tuple[str, int], ...] = ()


Changes: TypeAlias = Sequence[MemoryChange]


class LaneMemory(NamedTuple):
    """HBM of one lane: its peak, the tensors held then (largest first), and all changes by log.

    A log runs once from time 0, or at each of its calls.
    """

    peak_bytes: int
    peak_ps: int
    held: tuple[HeldTensor, ...]
    logs: tuple[tuple[CallTimes | None, Changes], ...]

    @property
    def changes(self) -> Changes:
        """All changes; those at one time are in the order in which they happen.

        Resident tensors are held from time 0 and are no changes. Those of a called segment are in
        its own order, whatever runs between its calls.
        """
        return tuple(change for calls, log in self.logs for change in _at_calls(calls, log))

    def by_category(self) -> dict[str, int]:
        """Return the bytes of each category at the peak."""
        totals: Counter[str] = Counter()
        for tensor in self.held:
            totals[tensor.category] += tensor.bytes
        return dict(totals)


def _at_calls(calls: CallTimes | None, log: Changes) -> Iterable[MemoryChange]:
    """Return the changes of a log with the times of its calls."""
    if calls is None:
        return log
    first = calls.starts_ps[0]
    return (
        change._replace(time_ps=first + change.time_ps, repeats=(calls, *change.repeats))
        for change in log
    )


@dataclass(frozen=True, slots=True, eq=False)
class MemoryProfile:
    """The effect of a log on HBM, whatever is held before.

    rise: bytes held more at its end.
    top: bytes held more at most, at `top_ps`.
    held: the change in the count of each tensor at that time.
    moves: the change at the end and the lowest in between, of each tensor whose count changes or
        falls below its start.
    tensors: all that are taken or freed.
    """

    rise: int
    top: int
    top_ps: int
    held: dict[str, int]
    moves: dict[str, tuple[int, int]]
    tensors: tuple[Alloc, ...]
    changes: Changes


def memory_profile(code: LaneCode, log: ChangeLog) -> MemoryProfile:
    """Return the profile of a log that was written by `code`."""
    rise, top, path = _highest_level(log)
    tensors, lowest = code.tensors, _lowest_counts(log)
    counts = _counts_until(log, path)
    return MemoryProfile(
        rise=rise,
        top=top,
        top_ps=_path_time(log, path),
        held={tensors[index].tensor: count for index, count in counts.items()},
        moves={
            tensors[index].tensor: (count, low)
            for index, (count, low) in lowest.items()
            if count or low < 0
        },
        tensors=tuple(tensors[index] for index in lowest),
        changes=LazyTuple(
            lambda: (
                MemoryChange(at, change.bytes, levels, _parts(change.tensors, tensors))
                for (at, change), levels in flatten(log)
            )
        ),
    )


def _parts(
    moved: Iterable[tuple[int, int]], tensors: Sequence[Alloc]
) -> tuple[tuple[str, int], ...]:
    """Return the bytes of a change by category."""
    totals: Counter[str] = Counter()
    for index, sign in moved:
        totals[tensors[index].category] += sign * whole_bytes(float(tensors[index].bytes))
    return tuple((category, nbytes) for category, nbytes in totals.items() if nbytes)


def lane_memory(resident: Sequence[Alloc], profile: MemoryProfile) -> LaneMemory:
    """Return the memory of a lane that writes one log.

    Raise ValueError if a tensor is freed that is not held.
    """
    for tensor, (_, lowest) in profile.moves.items():
        if lowest < 0:
            raise ValueError(f"tensor {tensor!r} is freed and not held")
    allocs = {alloc.tensor: alloc for alloc in profile.tensors}
    held = [held_tensor(alloc, 1) for alloc in resident]
    held += [held_tensor(allocs[name], count) for name, count in profile.held.items() if count]
    base = sum(whole_bytes(float(alloc.bytes)) for alloc in resident)
    return LaneMemory(
        profile.top + base, profile.top_ps, largest_first(held), ((None, profile.changes),)
    )


def held_tensor(alloc: Alloc, count: int) -> HeldTensor:
    """Return so many instances of a tensor."""
    return HeldTensor(
        tensor=alloc.tensor,
        category=alloc.category,
        count=count,
        bytes=count * whole_bytes(float(alloc.bytes)),
        padded=count * whole_bytes(float(alloc.padded)),
    )


def largest_first(held: Iterable[HeldTensor]) -> tuple[HeldTensor, ...]:
    """Return the tensors in the order in which they are shown."""
    return tuple(sorted(held, key=lambda each: (-each.bytes, each.tensor)))


def _highest_level(log: ChangeLog) -> tuple[int, int, LogPath]:
    """Return the level after `log`, the highest in it, from 0 at its start, and the path to it."""
    level = top = 0
    path: LogPath = ()
    for place, entry in enumerate(log):
        if isinstance(entry, RepeatedEntries):
            rise, inner, inner_path = _highest_level(entry.entries)
            last = entry.repeats - 1 if rise > 0 else 0
            if level + last * rise + inner > top:
                top = level + last * rise + inner
                path = ((place, last), *inner_path)
            level += entry.repeats * rise
        else:
            level += entry[1].bytes
            if level > top:
                top = level
                path = ((place, 0),)
    return level, top, path


def _path_time(log: ChangeLog, path: LogPath) -> int:
    shift = 0
    for place, repetition in path:
        entry = log[place]
        if not isinstance(entry, RepeatedEntries):
            return shift + entry[0]
        shift += repetition * entry.period_ps
        log = entry.entries
    return shift


def _counts_until(log: ChangeLog, path: LogPath) -> Counter[int]:
    """Return the instances of each tensor, by index, at the point of `log` that `path` leads to."""
    counts: Counter[int] = Counter()
    for place, repetition in path:
        _add_counts(log[:place], 1, counts)
        entry = log[place]
        if isinstance(entry, RepeatedEntries):
            log = entry.entries
            _add_counts(log, repetition, counts)
        else:
            _add_counts((entry,), 1, counts)
    return counts


def _add_counts(log: ChangeLog, runs: int, counts: Counter[int]) -> None:
    for (_, change), levels in flatten(log):
        for index, sign in change.tensors:
            counts[index] += sign * runs * repeat_count(levels)


def _lowest_counts(log: ChangeLog) -> dict[int, tuple[int, int]]:
    """Return the count of each tensor after `log` and the lowest in it, from 0 at its start."""
    counts: dict[int, tuple[int, int]] = {}
    for entry in log:
        if isinstance(entry, RepeatedEntries):
            for index, (rise, inner) in _lowest_counts(entry.entries).items():
                count, lowest = counts.get(index, (0, 0))
                inner += min(0, (entry.repeats - 1) * rise)
                counts[index] = (count + entry.repeats * rise, min(lowest, count + inner))
        else:
            for index, sign in entry[1].tensors:
                count, lowest = counts.get(index, (0, 0))
                counts[index] = (count + sign, min(lowest, count + sign))
    return counts
