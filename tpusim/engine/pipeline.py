"""Run lanes that call segments, and put their timeline together."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from time import perf_counter
from typing import NamedTuple

from simpy import Environment

from tpusim.costs.tasks import CostedProgram, Task
from tpusim.engine.clock import nanobytes_per_ps
from tpusim.engine.code import Step
from tpusim.engine.compile import compile_lane
from tpusim.engine.holdings import Holdings
from tpusim.engine.journal import Calls, Level, called
from tpusim.engine.part import Alone, Part, Parts, Spans
from tpusim.engine.progress import drive
from tpusim.engine.stage import Post, Stage
from tpusim.engine.timeline import LinkUse, Record, Stats, Timeline
from tpusim.phase import Phase
from tpusim.program import Call

BUBBLE = "bubble"
"""The label, stream and, at a lane's end, name of the core's waits for lanes that are at work."""


def has_calls(program: CostedProgram) -> bool:
    """Whether a lane calls segments."""
    return any(isinstance(op, Call) for op in program.body)


def run_calls(lanes: Sequence[CostedProgram], alone: Alone) -> Timeline:
    """The timeline of lanes that call segments; `alone` runs the tasks of one part to their end.

    Raises ValueError for calls of segments and messages to lanes that are not there, and for a
    message that is sent twice; StalledError for calls that wait for each other in a circle.
    """
    began = perf_counter()
    parts, post, env = Parts(alone), Post(), Environment(0)
    ways = _Ways(len(lanes))
    stages = [Stage(env, post, lane.name, parts.of(lane), ways.of(lane)) for lane in lanes]
    events = drive(env, stages)
    stats = Stats(
        events=events + sum(part.lane.events for part in parts.all),
        trips_simulated=sum(part.lane.trips for part in parts.all),
        trips=sum(part.lane.code.trips for part in parts.all),
        folds=tuple(made for part in parts.all for made in part.lane.folder.folds),
        seconds=perf_counter() - began,
    )
    return _timeline(lanes, stages, stats)


class _Ways:
    """The ways of messages in integer units; what is one object to several lanes is one step."""

    __slots__ = ("_lanes", "_steps")

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes
        self._steps: dict[tuple[int, int], Step] = {}

    def of(self, lane: CostedProgram) -> dict[tuple[str, int, float], Step]:
        """The step of what each segment of a lane sends to each other lane."""
        for way in lane.ways:
            if not 0 <= way.to < self._lanes:
                raise ValueError(f"lane {lane.name!r} sends to lane {way.to} of {self._lanes}")
        return {(way.segment, way.to, way.bytes): self._step(way.task, lane) for way in lane.ways}

    def _step(self, task: Task, lane: CostedProgram) -> Step:
        key = id(task), id(lane.links)
        found = self._steps.get(key)
        if found is None:
            alone = replace(lane, body=(task,), segments=(), host=(), resident=(), ways=())
            found = self._steps[key] = compile_lane(alone).steps[0]
        return found


class _Host(NamedTuple):
    """What the host of a lane does, and the waits of the lane for it at its end."""

    tasks: list[Record]
    waits: list[Record]
    end_ps: int


def _host(number: int, lane: CostedProgram, end_ps: int) -> _Host:
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


def _timeline(lanes: Sequence[CostedProgram], stages: Sequence[Stage], stats: Stats) -> Timeline:
    hosts = [_host(at, lane, stages[at].end_ps) for at, lane in enumerate(lanes)]
    total = max(host.end_ps for host in hosts)
    tasks: list[Record] = []
    waits: list[Record] = []
    links: list[LinkUse] = []
    memory, holdings, rates = [], Holdings(), _Rates()
    for at, (stage, host, lane) in enumerate(zip(stages, hosts, lanes, strict=True)):
        ran = list(zip(stage.starts, [part for _, part in stage.runs], strict=True))
        calls = tuple(called(ran))
        tasks += _records(at, ((part.tasks, when) for part, when in calls))
        tasks += _sends(at, stage)
        tasks += host.tasks
        waits += _records(at, ((part.waits, when) for part, when in calls))
        waits += _pauses(at, stage)
        waits += host.waits
        if host.end_ps < total:
            phase = stage.runs[-1][1].phase if stage.runs else Phase.FORWARD
            waits.append(Record(at, BUBBLE, BUBBLE, phase, BUBBLE, host.end_ps, total))
        links += _links(at, stage, rates.of(lane), calls)
        profiles = [(start, part.profile) for start, part in ran]
        logs = [(part.profile, when) for part, when in calls]
        memory.append(holdings.memory(lane.resident, profiles, logs))
    return Timeline(
        total_ps=total,
        lanes=tuple((lane.name, host.end_ps) for lane, host in zip(lanes, hosts, strict=True)),
        tasks=tuple(tasks),
        waits=tuple(waits),
        links=tuple(links),
        memory=tuple(memory),
        stats=stats,
    )


def _records(lane: int, ran: Iterable[tuple[Spans, Calls]]) -> Iterator[Record]:
    """The spans of each part once, with the times at which it ran."""
    for spans, calls in ran:
        first = calls.starts_ps[0]
        for (step, start, end), levels in spans:
            task, begin, done = step.task, first + start, first + end
            yield Record(
                lane, task.name, task.label, task.phase, task.stream, begin, done, (calls, *levels)
            )


def _sends(lane: int, stage: Stage) -> Iterator[Record]:
    """Each task that sends once, with the times of all its messages."""
    for way in (way for way in stage.ways.values() if way.left):
        end = way.left[0] + way.step.alone_ps
        yield _record(lane, way.step.task, way.left[0], end, (Calls(tuple(way.left)),))


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
