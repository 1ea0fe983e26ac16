"""HBM over time: the highest level, and what made it up.

The engine writes down each change in the order in which it happens (the end of a task comes before
the start of the next on the core), and the level is integrated here, after the run. A repeated part
of the journal is summed once: from one repetition to the next the level moves by the same amount at
each point, so the highest point is in the first or in the last.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from tpusim.engine.clock import whole_bytes
from tpusim.engine.code import Code
from tpusim.engine.journal import Entry, Level, Moment, Repeated, called, flat, times
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


class Memory(NamedTuple):
    """HBM of one lane: its peak, what is held then (largest first), and all changes.

    Resident tensors are held from time 0 and are no changes. Changes at one time are in the order
    in which they happen; those of a called segment are in its own order, whatever runs between.
    """

    peak_bytes: int
    peak_ps: int
    held: tuple[Held, ...]
    changes: tuple[MemoryChange, ...]

    def by_category(self) -> dict[str, int]:
        """Bytes at the peak of each category."""
        totals: Counter[str] = Counter()
        for tensor in self.held:
            totals[tensor.category] += tensor.bytes
        return dict(totals)


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """What a log does to HBM, whatever is held before.

    rise: bytes held more when it is over. top: bytes held more at most, at `top_ps`, and `held`: of
    which tensors how many more. moves: for each tensor whose count changes or falls below what it
    was, by how much in the end, and how far at most. tensors: all that are taken or freed.
    """

    log: Log
    rise: int
    top: int
    top_ps: int
    held: dict[str, int]
    moves: tuple[tuple[str, int, int], ...]
    tensors: tuple[Alloc, ...]


def profile_of(code: Code, log: Log) -> Profile:
    """The profile of a log that was written by `code`."""
    rise, top, path = _highest(log)
    tensors, lowest = code.tensors, _lowest(log)
    counts = _counts_until(log, path)
    return Profile(
        log=log,
        rise=rise,
        top=top,
        top_ps=_time(log, path),
        held={tensors[index].tensor: count for index, count in counts.items()},
        moves=tuple(
            (tensors[index].tensor, count, low)
            for index, (count, low) in lowest.items()
            if count or low < 0
        ),
        tensors=tuple(tensors[index] for index in lowest),
    )


def memory_of(resident: Sequence[Alloc], profile: Profile) -> Memory:
    """The memory of a lane that writes one log. Raises ValueError as `memory_of_runs` does."""
    changes = (MemoryChange(at, change.bytes, levels) for (at, change), levels in flat(profile.log))
    return memory_of_runs(resident, [(0, profile)])._replace(changes=tuple(changes))


def memory_of_runs(resident: Sequence[Alloc], runs: Sequence[tuple[int, Profile]]) -> Memory:
    """The memory of one lane that runs logs one after another, each from a time on.

    Raises ValueError when a tensor is freed that is not held, or has two sizes.
    """
    _check_balance(runs)
    level, top, best = 0, 0, -1
    for at, (_, profile) in enumerate(runs):
        if level + profile.top > top:
            top, best = level + profile.top, at
        level += profile.rise
    held = [_held(alloc, 1) for alloc in resident]
    allocs = _tensors(runs)
    held += [_held(allocs[name], n) for name, n in _counts_at(runs, best).items() if n]
    return Memory(
        peak_bytes=top + sum(whole_bytes(float(alloc.bytes)) for alloc in resident),
        peak_ps=runs[best][0] + runs[best][1].top_ps if best >= 0 else 0,
        held=tuple(sorted(held, key=lambda each: (-each.bytes, each.tensor))),
        changes=tuple(_changes(runs)),
    )


def _changes(runs: Sequence[tuple[int, Profile]]) -> Iterator[MemoryChange]:
    """The changes of each log once, with the times at which it runs."""
    for profile, calls in called(runs):
        for (at, change), levels in flat(profile.log):
            yield MemoryChange(calls.starts_ps[0] + at, change.bytes, (calls, *levels))


def _tensors(runs: Sequence[tuple[int, Profile]]) -> dict[str, Alloc]:
    """All tensors by name."""
    found: dict[str, Alloc] = {}
    for profile in dict.fromkeys(profile for _, profile in runs):
        for alloc in profile.tensors:
            size = whole_bytes(float(alloc.bytes))
            known = whole_bytes(float(found.setdefault(alloc.tensor, alloc).bytes))
            if known != size:
                raise ValueError(f"tensor {alloc.tensor!r} has {known} and {size} bytes")
    return found


def _counts_at(runs: Sequence[tuple[int, Profile]], best: int) -> Counter[str]:
    """Instances held of each tensor at the peak, which is in the run `best`."""
    counts: Counter[str] = Counter()
    for _, profile in runs[: max(0, best)]:
        for tensor, rise, _ in profile.moves:
            counts[tensor] += rise
    if best >= 0:
        counts.update(runs[best][1].held)
    return counts


def _held(alloc: Alloc, count: int) -> Held:
    return Held(
        tensor=alloc.tensor,
        category=alloc.category,
        count=count,
        bytes=count * whole_bytes(float(alloc.bytes)),
        padded=count * whole_bytes(float(alloc.padded)),
    )


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


def _check_balance(runs: Sequence[tuple[int, Profile]]) -> None:
    held: dict[str, int] = {}
    for _, profile in runs:
        for tensor, rise, lowest in profile.moves:
            before = held.get(tensor, 0)
            if before + lowest < 0:
                raise ValueError(f"tensor {tensor!r} is freed and not held")
            held[tensor] = before + rise


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
