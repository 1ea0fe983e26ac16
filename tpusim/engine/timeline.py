"""What a run of the engine returns: plain data, exact, with repeated parts kept once."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

from tpusim.costs.tasks import ON_HOST
from tpusim.engine.fold import Fold
from tpusim.engine.journal import Level, times
from tpusim.engine.memory import Memory
from tpusim.program import Phase


@dataclass(frozen=True, slots=True)
class Record:
    """A task that ran, or one that the core waited for: its first time, and its repetitions.

    lane: index of the lane. phase, label, stream: those of the task.
    start_ps, end_ps: when the first repetition started and ended.
    repeats: levels of repetition, the outermost first; () for what happened once.
    """

    lane: int
    name: str
    label: str
    phase: Phase
    stream: str
    start_ps: int
    end_ps: int
    repeats: tuple[Level, ...] = ()

    @property
    def count(self) -> int:
        """How many times it happened."""
        return times(self.repeats)

    @property
    def duration_ps(self) -> int:
        """How long it took each time."""
        return self.end_ps - self.start_ps

    @property
    def total_ps(self) -> int:
        """How long it took in all, each repetition counted."""
        return self.count * self.duration_ps

    def starts(self) -> Iterator[int]:
        """When each repetition started, in picoseconds, in order of time."""
        for shifts in product(*(level.shifts() for level in self.repeats)):
            yield self.start_ps + sum(shifts)


class LinkUse(NamedTuple):
    """What one link of one lane carried: nanobytes (each task's bytes x weight), and its rate."""

    lane: int
    link: str
    volume_nb: int
    rate_nb_per_ps: int

    @property
    def busy_ps(self) -> float:
        """How long the link at its full rate needs for what it carried."""
        return self.volume_nb / self.rate_nb_per_ps


class Stats(NamedTuple):
    """What the run cost: events, trips of loops made and asked for, folds, seconds.

    Hop by hop, each crossing of a link by a message is an event too.
    """

    events: int
    trips_simulated: int
    trips: int
    folds: tuple[Fold, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One step, to the picosecond.

    lanes: name and end (ps) of each lane; total_ps is the last end.
    tasks: what ran, in the order in which it ended, and then what the host did. Of a lane with
    calls: what each of its segments ran, in the order in which that ended, then its sends.
    waits: when the core stood still, and for what.
    A lane's waits and its tasks of stream `core` follow one another without gap from 0 to its end,
    and from there to `total_ps` where it has calls: then its last wait is for the other lanes.
    """

    total_ps: int
    lanes: tuple[tuple[str, int], ...]
    tasks: tuple[Record, ...]
    waits: tuple[Record, ...]
    links: tuple[LinkUse, ...]
    memory: tuple[Memory, ...]
    stats: Stats = field(compare=False)

    @property
    def device_ps(self) -> int:
        """How long a step is without waits for the host, which are at the end of each lane."""
        ends = [end for _, end in self.lanes]
        for wait in self.waits:
            if wait.stream == ON_HOST:
                ends[wait.lane] -= wait.total_ps
        return max(ends, default=0)
