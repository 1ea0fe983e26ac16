"""The result of a run of the engine: plain data, exact, with repeated parts kept once."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple, TypeAlias

from tpusim.base.lazy import LazyTuple
from tpusim.costs import CORE, ON_HOST, Task
from tpusim.engine.fold import Fold
from tpusim.engine.journal import Level, repeat_count
from tpusim.engine.memory import LaneMemory
from tpusim.program import Phase

BUBBLE = "bubble"
"""Label, stream and, at a lane's end, name of the core's waits for lanes that are at work."""


@dataclass(frozen=True, slots=True)
class Record:
    """A task that ran, or one that the core waited for: its first time, and its repetitions.

    lane: index of the lane.
    phase, label, stream: those of the task.
    start_ps, end_ps: of the first repetition.
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
        """The number of repetitions."""
        return repeat_count(self.repeats)

    @property
    def duration_ps(self) -> int:
        """The time of one repetition."""
        return self.end_ps - self.start_ps

    @property
    def total_ps(self) -> int:
        """The time of all repetitions."""
        return self.count * self.duration_ps

    def starts(self) -> Iterator[int]:
        """Yield the start of each repetition in picoseconds, in order of time."""
        for shifts in product(*(level.shifts() for level in self.repeats)):
            yield self.start_ps + sum(shifts)


def record_of(
    lane: int, task: Task, start_ps: int, end_ps: int, repeats: tuple[Level, ...] = ()
) -> Record:
    """Return the record of a task."""
    return Record(lane, task.name, task.label, task.phase, task.stream, start_ps, end_ps, repeats)


CoreTime: TypeAlias = Mapping[tuple[str, Phase], int]
"""Picoseconds of cores by label and phase."""


def core_time(records: Iterable[Record], devices: Sequence[int] = ()) -> Counter[tuple[str, Phase]]:
    """Return the picoseconds of records by label and phase, on as many devices as lanes stand for.

    devices: of each lane; () for one each.
    """
    found: Counter[tuple[str, Phase]] = Counter()
    for record in records:
        times = devices[record.lane] if devices else 1
        found[record.label, record.phase] += times * record.total_ps
    return found


class Records(LazyTuple[Record]):
    """Records that are made when the first is read.

    core: the sum of those of the core, each as many times as devices run its lane.
    """

    __slots__ = ("core",)

    def __init__(self, make: Callable[[], Iterable[Record]], core: CoreTime) -> None:
        super().__init__(make)
        self.core = core


class LinkUse(NamedTuple):
    """The nanobytes on one link of one lane (each task's bytes x weight), and its rate."""

    lane: int
    link: str
    volume_nb: int
    rate_nb_per_ps: int

    @property
    def busy_ps(self) -> float:
        """The time that the link needs for its volume at its full rate."""
        return self.volume_nb / self.rate_nb_per_ps


class Stats(NamedTuple):
    """The cost of the run: SimPy events, loop iterations run and requested, folds, seconds.

    Hop by hop, each crossing of a link by a message is an event too.

    seconds: wall-clock time of the engine, the only number that differs from run to run.
    """

    events: int
    trips_simulated: int
    trips: int
    folds: tuple[Fold, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """One step, to the picosecond.

    total_ps: the last end of a lane.
    lanes: name and end (ps) of each lane.
    tasks: in the order in which they ended, then those of the host. A lane with calls has the tasks
        of each of its segments, in the order in which they ended, then its sends.
    waits: of the core, and for which task; in waits for stragglers the stream is the name of the
        lane that arrived last.
    devices: where lanes are devices that differ, or classes of them, the number that each stands
        for; else ().

    A lane's waits and its tasks of stream `core` follow one another without gap from 0 to its end,
    and from there to `total_ps` if it has calls or meets others: then its last wait is for them.
    """

    total_ps: int
    lanes: tuple[tuple[str, int], ...]
    tasks: Sequence[Record]
    waits: tuple[Record, ...]
    links: tuple[LinkUse, ...]
    memory: tuple[LaneMemory, ...]
    stats: Stats = field(compare=False)
    devices: tuple[int, ...] = ()

    @property
    def core_ps(self) -> CoreTime:
        """Tasks and waits of the cores of all lanes, in picoseconds by label and phase.

        They sum to `total_ps` per lane if every lane waits for all others. Lanes that stand for
        several devices count as many times.
        """
        if isinstance(self.tasks, Records):
            work = self.tasks.core
        else:
            work = core_time((r for r in self.tasks if r.stream == CORE), self.devices)
        return core_time(self.waits, self.devices) + Counter(work)

    @property
    def core_count(self) -> int:
        """The cores whose time `core_ps` is: one for each lane, or for each device."""
        return sum(self.devices) or len(self.lanes)

    @property
    def device_ps(self) -> int:
        """The time of a step without waits for the host, which are at the end of each lane."""
        ends = [end for _, end in self.lanes]
        for wait in self.waits:
            if wait.stream == ON_HOST:
                ends[wait.lane] -= wait.total_ps
        return max(ends, default=0)
