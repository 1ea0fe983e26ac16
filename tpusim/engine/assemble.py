"""What lanes with calls did, as a timeline: each record of a part once, with all its calls."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from tpusim.costs.tasks import CostedProgram, Task
from tpusim.engine.clock import nanobytes_per_ps
from tpusim.engine.compile import compile_lane
from tpusim.engine.holdings import Holdings
from tpusim.engine.journal import Calls, Level, called
from tpusim.engine.memory import Memory
from tpusim.engine.part import Part, Spans
from tpusim.engine.stage import Stage
from tpusim.engine.timeline import CoreTime, LinkUse, Record, Records, Stats, Timeline
from tpusim.phase import Phase

BUBBLE = "bubble"
"""The label, stream and, at a lane's end, name of the core's waits for lanes that are at work."""

Called: TypeAlias = tuple[tuple[Part, Calls], ...]
"""The parts of a lane, and when it ran each."""


class _Host(NamedTuple):
    """What the host of a lane does, and the waits of the lane for it at its end."""

    tasks: list[Record]
    waits: list[Record]
    end_ps: int


def timeline_of(lanes: Sequence[CostedProgram], stages: Sequence[Stage], stats: Stats) -> Timeline:
    """The timeline of lanes that have run to their ends, each as long as the longest."""
    hosts = [_host(at, lane, stages[at].end_ps) for at, lane in enumerate(lanes)]
    total = max(host.end_ps for host in hosts)
    waits: list[Record] = []
    links: list[LinkUse] = []
    memory: list[Memory] = []
    holdings, rates, did = Holdings(), _Rates(), list[Called]()
    for at, (lane, stage, host) in enumerate(zip(lanes, stages, hosts, strict=True)):
        runs = [part for _, part in stage.runs]
        calls = tuple(called(zip(stage.starts, runs, strict=True)))
        did.append(calls)
        waits += _waits(at, stage, calls, host, total)
        links += _links(at, stage, rates.of(lane), calls)
        profiles = [part.profile for part in runs]
        logs = [(part.profile, when) for part, when in calls]
        memory.append(holdings.memory(lane.resident, stage.starts, profiles, logs))
    ends = tuple((lane.name, host.end_ps) for lane, host in zip(lanes, hosts, strict=True))
    tasks = Records(lambda: _all_tasks(stages, did, hosts), _core(did))
    return Timeline(
        total_ps=total, lanes=ends, tasks=tasks, waits=tuple(waits), links=tuple(links),
        memory=tuple(memory), stats=stats,
    )  # fmt: skip


def _core(did: Iterable[Called]) -> CoreTime:
    """What the parts of all lanes did on the core, by label and phase."""
    found: Counter[tuple[str, Phase]] = Counter()
    for calls in did:
        for part, when in calls:
            for cell, picoseconds in part.core.items():
                found[cell] += when.repeats * picoseconds
    return found


def _all_tasks(
    stages: Sequence[Stage], did: Sequence[Called], hosts: Sequence[_Host]
) -> Iterator[Record]:
    for at, (stage, calls, host) in enumerate(zip(stages, did, hosts, strict=True)):
        yield from _tasks(at, stage, calls)
        yield from host.tasks


def _host(number: int, lane: CostedProgram, end_ps: int) -> _Host:
    """What the host does, one thing after another from the start, and what a lane waits for it."""
    tasks, waits, done = [], [], 0
    alone = replace(lane, body=(), segments=(), resident=(), ways=())
    for step in compile_lane(alone).host if lane.host else ():
        began, done = done, done + step.alone_ps
        tasks.append(_record(number, step.task, began, done))
        if done > end_ps:
            waits.append(_record(number, step.task, end_ps, done))
            end_ps = done
    return _Host(tasks, waits, end_ps)


def _record(lane: int, task: Task, start: int, end: int, levels: tuple[Level, ...] = ()) -> Record:
    return Record(lane, task.name, task.label, task.phase, task.stream, start, end, levels)


def _tasks(lane: int, stage: Stage, calls: Called) -> Iterator[Record]:
    """What the parts of a lane ran, and then its messages."""
    yield from _records(lane, ((part.tasks, when) for part, when in calls))
    for way in stage.ways.values():
        if way.left:
            task, end = way.step.task, way.left[0] + way.step.alone_ps
            yield _record(lane, task, way.left[0], end, (Calls(tuple(way.left)),))


def _waits(lane: int, stage: Stage, calls: Called, host: _Host, total_ps: int) -> Iterator[Record]:
    """The waits within parts and between them, for the host, and for the lanes that take longer."""
    yield from _records(lane, ((part.waits, when) for part, when in calls))
    yield from _pauses(lane, stage)
    yield from host.waits
    if host.end_ps < total_ps:
        phase = stage.runs[-1][1].phase if stage.runs else Phase.FORWARD
        yield Record(lane, BUBBLE, BUBBLE, phase, BUBBLE, host.end_ps, total_ps)


def _records(lane: int, ran: Iterable[tuple[Spans, Calls]]) -> Iterator[Record]:
    """The spans of each part once, with the times at which it ran."""
    for spans, calls in ran:
        first = calls.starts_ps[0]
        for (step, start, end), levels in spans:
            task, begin, done = step.task, first + start, first + end
            yield Record(
                lane, task.name, task.label, task.phase, task.stream, begin, done, (calls, *levels)
            )


def _pauses(lane: int, stage: Stage) -> Iterator[Record]:
    """The waits between runs, for work of other lanes, and for messages on their way.

    Those that differ in their times alone are one record.
    """
    for (part, awaited, length), when in stage.waits.items():
        if isinstance(awaited, Part):
            name, label, stream = awaited.name, BUBBLE, BUBBLE
        else:
            name, label, stream = awaited.task.name, awaited.task.label, awaited.task.stream
        first, levels = when[0], (Calls(tuple(when)),)
        yield Record(lane, name, label, part.phase, stream, first, first + length, levels)


class _Rates:
    """The rates of the links of lanes, in nB/ps; most lanes have the same links."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[int, list[tuple[str, int]]] = {}

    def of(self, lane: CostedProgram) -> list[tuple[str, int]]:
        """Name and rate of each link of a lane."""
        found = self._known.get(id(lane.links))
        if found is None:
            found = [(name, nanobytes_per_ps(float(rate))) for name, rate in lane.links]
            self._known[id(lane.links)] = found
        return found


def _links(
    number: int, stage: Stage, rates: Sequence[tuple[str, int]],
    calls: Iterable[tuple[Part, Calls]],
) -> Iterator[LinkUse]:  # fmt: skip
    """What each link of a lane carried: its parts as often as they ran, and its messages."""
    totals = [0] * len(rates)
    for part, when in calls:
        for link, volume in part.volumes:
            totals[link] += when.repeats * volume
    for way in stage.ways.values():
        for link, weight in way.step.uses:
            totals[link] += len(way.left) * weight * way.step.volume
    for (name, rate), volume in zip(rates, totals, strict=True):
        yield LinkUse(number, name, volume, rate)
