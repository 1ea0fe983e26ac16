"""What a lane has done, in the order in which it was done, with repeated parts kept once."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from tpusim.engine.code import Change, Step

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Repeated(Generic[T]):
    """`entries`, made `repeats` times in all, `period_ps` apart; the times are the first ones."""

    entries: "tuple[Entry[T], ...]"
    repeats: int
    period_ps: int


Entry: TypeAlias = T | Repeated[T]


class Repeat(NamedTuple):
    """One level of repetition: `repeats` times, `period_ps` apart."""

    repeats: int
    period_ps: int

    def shifts(self) -> Iterator[int]:
        """How much later than the first each repetition is, in picoseconds."""
        return (turn * self.period_ps for turn in range(self.repeats))

    @property
    def last_ps(self) -> int:
        """How much later than the first the last repetition is."""
        return (self.repeats - 1) * self.period_ps


class Calls(NamedTuple):
    """The level of what is called again and again: when each call begins."""

    starts_ps: tuple[int, ...]

    @property
    def repeats(self) -> int:
        """How many calls there are."""
        return len(self.starts_ps)

    def shifts(self) -> Iterator[int]:
        """How much later than the first each call is, in picoseconds."""
        return (start - self.starts_ps[0] for start in self.starts_ps)

    @property
    def last_ps(self) -> int:
        """How much later than the first the last call is."""
        return self.starts_ps[-1] - self.starts_ps[0]


Level: TypeAlias = Repeat | Calls
"""One level of repetition. Calls are the outermost."""


# A step (that ran, or that the core waited for) from one time to another; a change at a time.
Span: TypeAlias = tuple[Step, int, int]
Moment: TypeAlias = tuple[int, Change]


class Mark(NamedTuple):
    """A place in the journal: the true time and the length of each list."""

    now_ps: int
    tasks: int
    waits: int
    changes: int


class Journal:
    """The lists that a lane appends to, and the time that folding has booked.

    True time is the time of the SimPy clock, which never jumps, plus `booked_ps`.
    """

    __slots__ = ("booked_ps", "changes", "tasks", "waits")

    def __init__(self) -> None:
        self.booked_ps = 0
        self.tasks: list[Entry[Span]] = []
        self.waits: list[Entry[Span]] = []
        self.changes: list[Entry[Moment]] = []

    def mark(self, clock_ps: int) -> Mark:
        """This place in the journal."""
        now = clock_ps + self.booked_ps
        return Mark(now, len(self.tasks), len(self.waits), len(self.changes))

    def repeat(self, mark: Mark, more: int, clock_ps: int) -> int:
        """Book `more` repetitions of all that followed `mark`; the length of one in picoseconds."""
        period = clock_ps + self.booked_ps - mark.now_ps
        _close(self.tasks, mark.tasks, more + 1, period)
        _close(self.waits, mark.waits, more + 1, period)
        _close(self.changes, mark.changes, more + 1, period)
        self.booked_ps += more * period
        return period


def flat(
    entries: Sequence[Entry[T]], levels: tuple[Repeat, ...] = ()
) -> Iterator[tuple[T, tuple[Repeat, ...]]]:
    """Each entry once, with the levels of repetition that it is under, the outermost first."""
    for entry in entries:
        if isinstance(entry, Repeated):
            yield from flat(entry.entries, (*levels, Repeat(entry.repeats, entry.period_ps)))
        else:
            yield entry, levels


def called(runs: Iterable[tuple[int, T]]) -> Iterator[tuple[T, Calls]]:
    """What runs from some times on: each thing once, and when."""
    starts: dict[T, list[int]] = {}
    for start, thing in runs:
        starts.setdefault(thing, []).append(start)
    return ((thing, Calls(tuple(found))) for thing, found in starts.items())


def times(levels: Sequence[Level]) -> int:
    """How many times something under `levels` happens."""
    count = 1
    for level in levels:
        count *= level.repeats
    return count


def _close(entries: list[Entry[T]], start: int, repeats: int, period: int) -> None:
    if len(entries) > start:
        entries[start:] = [Repeated(tuple(entries[start:]), repeats, period)]
