"""The journal of a lane: tasks, waits and memory changes, with repeated parts kept once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from tpusim.engine.instructions import MemoryDelta, TaskStep

JournalItem = TypeVar("JournalItem")


@dataclass(frozen=True, slots=True)
class RepeatedEntries(Generic[JournalItem]):
    """`entries`, made `repeats` times in all, `period_ps` apart; with the times of the first."""

    entries: "tuple[JournalEntry[JournalItem], ...]"
    repeats: int
    period_ps: int


JournalEntry: TypeAlias = JournalItem | RepeatedEntries[JournalItem]


class RepeatLevel(NamedTuple):
    """One level of repetition: `repeats` times, `period_ps` apart."""

    repeats: int
    period_ps: int

    def shifts(self) -> Iterator[int]:
        """Yield the picoseconds from the first repetition to each."""
        return (turn * self.period_ps for turn in range(self.repeats))

    @property
    def last_ps(self) -> int:
        """The picoseconds from the first repetition to the last."""
        return (self.repeats - 1) * self.period_ps


class CallTimes(NamedTuple):
    """The level of repeated calls: the start of each."""

    starts_ps: tuple[int, ...]

    @property
    def repeats(self) -> int:
        """The number of calls."""
        return len(self.starts_ps)

    def shifts(self) -> Iterator[int]:
        """Yield the picoseconds from the first call to each."""
        return (start - self.starts_ps[0] for start in self.starts_ps)

    @property
    def last_ps(self) -> int:
        """The picoseconds from the first call to the last."""
        return self.starts_ps[-1] - self.starts_ps[0]


Level: TypeAlias = RepeatLevel | CallTimes
"""One level of repetition. Calls are the outermost."""


# A step (that ran, or that the core waited for) from one time to another; a change at a time.
TimedStep: TypeAlias = tuple[TaskStep, int, int]
TimedChange: TypeAlias = tuple[int, MemoryDelta]


class JournalMark(NamedTuple):
    """A place in the journal: the true time and the length of each list."""

    now_ps: int
    tasks: int
    waits: int
    changes: int


@dataclass(slots=True)
class Journal:
    """The lists that a lane appends to, and the time that folding has booked.

    True time is the time of the SimPy clock, which never jumps, plus `booked_ps`.
    """

    booked_ps: int = 0
    tasks: list[JournalEntry[TimedStep]] = field(default_factory=list)
    waits: list[JournalEntry[TimedStep]] = field(default_factory=list)
    changes: list[JournalEntry[TimedChange]] = field(default_factory=list)

    def mark(self, clock_ps: int) -> JournalMark:
        """Return this place in the journal."""
        now = clock_ps + self.booked_ps
        return JournalMark(now, len(self.tasks), len(self.waits), len(self.changes))

    def repeat(self, mark: JournalMark, more: int, clock_ps: int) -> int:
        """Book `more` repetitions of everything since `mark`; return the picoseconds of one."""
        period = clock_ps + self.booked_ps - mark.now_ps
        _close_entries(self.tasks, mark.tasks, more + 1, period)
        _close_entries(self.waits, mark.waits, more + 1, period)
        _close_entries(self.changes, mark.changes, more + 1, period)
        self.booked_ps += more * period
        return period


def flatten(
    entries: Sequence[JournalEntry[JournalItem]], levels: tuple[RepeatLevel, ...] = ()
) -> Iterator[tuple[JournalItem, tuple[RepeatLevel, ...]]]:
    """Yield each entry once, with its levels of repetition, the outermost first."""
    for entry in entries:
        if isinstance(entry, RepeatedEntries):
            yield from flatten(
                entry.entries, (*levels, RepeatLevel(entry.repeats, entry.period_ps))
            )
        else:
            yield entry, levels


def repeat_count(levels: Sequence[Level]) -> int:
    """Return the number of times that something under `levels` happens."""
    count = 1
    for level in levels:
        count *= level.repeats
    return count


def _close_entries(
    entries: list[JournalEntry[JournalItem]], start: int, repeats: int, period: int
) -> None:
    if len(entries) > start:
        entries[start:] = [RepeatedEntries(tuple(entries[start:]), repeats, period)]
