"""HBM over time: the highest level, and what made it up.

The engine writes down each change in the order in which it happens (the end of a task comes before
the start of the next on the core), and the level is integrated here, after the run. A repeated part
of the journal is summed once: from one repetition to the next the level moves by the same amount at
each point, so the highest point is in the first or in the last.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from tpusim.engine.clock import whole_bytes
from tpusim.engine.code import Code
from tpusim.engine.journal import Calls, Entry, Level, Moment, Repeated, flat, times
from tpusim.program import Alloc

Log: TypeAlias = Sequence[Entry[Moment]]
# The way to a point of a log: at each level the entry and, if it is repeated, which repetition.
Path: TypeAlias = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """`count` instances of a tensor with `bytes` in all, of which `padded` hold no data."""

    tensor: str
    category: str
    count: int
    bytes: int
    padded: int


class MemoryChange(NamedTuple):
    """`bytes` taken (freed: negative) at `time_ps`, again at each repetition."""

    time_ps: int
    bytes: int
    repeats: tuple[Level, ...] = ()


Changes: TypeAlias = tuple[MemoryChange, ...]


class Memory(NamedTuple):
    """HBM of one lane: its peak, what is held then (largest first), and all changes by log.

    Each log is run once from time 0, or where there are calls at each of them.
    """

    peak_bytes: int
    peak_ps: int
    held: tuple[Held, ...]
    logs: tuple[tuple[Calls | None, Changes], ...]

    @property
    def changes(self) -> Changes:
        """All changes; those at one time are in the order in which they happen.

        Resident tensors are held from time 0 and are no changes. Those of a called segment are in
        its own order, whatever runs between its calls.
        """
        return tuple(change for calls, log in self.logs for change in _at(calls, log))

    def by_category(self) -> dict[str, int]:
        """Bytes at the peak of each category."""
        totals: Counter[str] = Counter()
        for tensor in self.held:
            totals[tensor.category] += tensor.bytes
        return dict(totals)


def _at(calls: Calls | None, log: Changes) -> Iterable[MemoryChange]:
    """The changes of a log with the times of its calls."""
    if calls is None:
        return log
    first = calls.starts_ps[0]
    return (MemoryChange(first + time, nbytes, (calls, *levels)) for time, nbytes, levels in log)


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """What a log does to HBM, whatever is held before.

    rise: bytes held more when it is over. top: bytes held more at most, at `top_ps`, and `held`: of
    which tensors how many more. moves: of each tensor whose count changes or falls below what it
    was, by how much in the end, and how far at most. tensors: all that are taken or freed.
    """

    rise: int
    top: int
    top_ps: int
    held: dict[str, int]
    moves: dict[str, tuple[int, int]]
    tensors: tuple[Alloc, ...]
    changes: Changes


def profile_of(code: Code, log: Log) -> Profile:
    """The profile of a log that was written by `code`."""
    rise, top, path = _highest(log)
    tensors, lowest = code.tensors, _lowest(log)
    counts = _counts_until(log, path)
    return Profile(
        rise=rise,
        top=top,
        top_ps=_time(log, path),
        held={tensors[index].tensor: count for index, count in counts.items()},
        moves={
            tensors[index].tensor: (count, low)
            for index, (count, low) in lowest.items()
            if count or low < 0
        },
        tensors=tuple(tensors[index] for index in lowest),
        changes=tuple(MemoryChange(at, change.bytes, levels) for (at, change), levels in flat(log)),
    )


def memory_of(resident: Sequence[Alloc], profile: Profile) -> Memory:
    """The memory of a lane that writes one log.

    Raises ValueError when a tensor is freed that is not held.
    """
    for tensor, (_, lowest) in profile.moves.items():
        if lowest < 0:
            raise ValueError(f"tensor {tensor!r} is freed and not held")
    allocs = {alloc.tensor: alloc for alloc in profile.tensors}
    held = [held_of(alloc, 1) for alloc in resident]
    held += [held_of(allocs[name], count) for name, count in profile.held.items() if count]
    base = sum(whole_bytes(float(alloc.bytes)) for alloc in resident)
    return Memory(
        profile.top + base, profile.top_ps, largest_first(held), ((None, profile.changes),)
    )


def held_of(alloc: Alloc, count: int) -> Held:
    """So many instances of a tensor."""
    return Held(
        tensor=alloc.tensor,
        category=alloc.category,
        count=count,
        bytes=count * whole_bytes(float(alloc.bytes)),
        padded=count * whole_bytes(float(alloc.padded)),
    )


def largest_first(held: Iterable[Held]) -> tuple[Held, ...]:
    """What is held, in the order in which it is shown."""
    return tuple(sorted(held, key=lambda each: (-each.bytes, each.tensor)))


def _highest(log: Log) -> tuple[int, int, Path]:
    """The level after `log` and the highest level in it, from 0 at its start, and where it is."""
    level = top = 0
    path: Path = ()
    for place, entry in enumerate(log):
        if isinstance(entry, Repeated):
            rise, inner, way = _highest(entry.entries)
            last = entry.repeats - 1 if rise > 0 else 0
            if level + last * rise + inner > top:
                top = level + last * rise + inner
                path = ((place, last), *way)
            level += entry.repeats * rise
        else:
            level += entry[1].bytes
            if level > top:
                top = level
                path = ((place, 0),)
    return level, top, path


def _time(log: Log, path: Path) -> int:
    shift = 0
    for place, repetition in path:
        entry = log[place]
        if not isinstance(entry, Repeated):
            return shift + entry[0]
        shift += repetition * entry.period_ps
        log = entry.entries
    return shift


def _counts_until(log: Log, path: Path) -> Counter[int]:
    """Instances held of each tensor, by index, at the point of `log` that `path` leads to."""
    counts: Counter[int] = Counter()
    for place, repetition in path:
        _count(log[:place], 1, counts)
        entry = log[place]
        if isinstance(entry, Repeated):
            log = entry.entries
            _count(log, repetition, counts)
        else:
            _count((entry,), 1, counts)
    return counts


def _count(log: Log, runs: int, counts: Counter[int]) -> None:
    for (_, change), levels in flat(log):
        for index, sign in change.tensors:
            counts[index] += sign * runs * times(levels)


def _lowest(log: Log) -> dict[int, tuple[int, int]]:
    """The count of each tensor after `log` and the lowest in it, from 0 at its start."""
    counts: dict[int, tuple[int, int]] = {}
    for entry in log:
        if isinstance(entry, Repeated):
            for index, (rise, inner) in _lowest(entry.entries).items():
                count, lowest = counts.get(index, (0, 0))
                inner += min(0, (entry.repeats - 1) * rise)
                counts[index] = (count + entry.repeats * rise, min(lowest, count + inner))
        else:
            for index, sign in entry[1].tensors:
                count, lowest = counts.get(index, (0, 0))
                counts[index] = (count + sign, min(lowest, count + sign))
    return counts
