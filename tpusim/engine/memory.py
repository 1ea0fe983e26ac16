"""HBM over time: the highest level, and what made it up.

The engine writes down each change in the order in which it happens (the end of a task comes before
the start of the next on the core), and the level is integrated here, after the run. A repeated part
of the journal is summed once: from one repetition to the next the level moves by the same amount at
each point, so the highest point is in the first or in the last.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from tpusim.engine.clock import whole_bytes
from tpusim.engine.code import Code
from tpusim.engine.journal import Entry, Moment, Repeat, Repeated, flat, times
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
    repeats: tuple[Repeat, ...] = ()


class Memory(NamedTuple):
    """HBM of one lane: its peak, what is held then (largest first), and all changes.

    Resident tensors are held from time 0 and are no changes. Changes at one time are in the order
    in which they happen.
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


def memory_of(code: Code, log: Log) -> Memory:
    """The memory of one lane over the run that wrote `log`.

    Raises ValueError when a tensor is freed that is not held.
    """
    _check_balance(code, log)
    _, top, path = _highest(log)
    held = _held(code.resident, Counter(range(len(code.resident))))
    held += _held(code.tensors, _counts_until(log, path))
    changes = (MemoryChange(at, change.bytes, levels) for (at, change), levels in flat(log))
    return Memory(
        peak_bytes=top + sum(whole_bytes(float(alloc.bytes)) for alloc in code.resident),
        peak_ps=_time(log, path),
        held=tuple(sorted(held, key=lambda each: (-each.bytes, each.tensor))),
        changes=tuple(changes),
    )


def _held(allocs: Sequence[Alloc], counts: Counter[int]) -> list[Held]:
    return [
        Held(
            tensor=allocs[index].tensor,
            category=allocs[index].category,
            count=count,
            bytes=count * whole_bytes(float(allocs[index].bytes)),
            padded=count * whole_bytes(float(allocs[index].padded)),
        )
        for index, count in counts.items()
        if count
    ]


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


def _check_balance(code: Code, log: Log) -> None:
    for index, (_, lowest) in _lowest(log).items():
        if lowest < 0:
            raise ValueError(f"tensor {code.tensors[index].tensor!r} is freed and not held")


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
