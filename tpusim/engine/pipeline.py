"""Run lanes that call segments, and put their timeline together.

Each part of the lanes is simulated once, then the lanes step through their calls. A record of a
part is in the timeline once, with the times of all its calls.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from time import perf_counter
from typing import NamedTuple, TypeAlias

from simpy import Environment

from tpusim.base.phase import Phase
from tpusim.costs import CostedProgram, Task
from tpusim.engine.clock import nanobytes_per_ps
from tpusim.engine.compile_lane import compile_lane
from tpusim.engine.event_loop import run_processes
from tpusim.engine.instructions import TaskStep
from tpusim.engine.journal import CallTimes, calls_of_each
from tpusim.engine.lane import lane_stats
from tpusim.engine.lane_part import LanePart, LaneParts, RepeatedSteps, RunAlone
from tpusim.engine.memory import LaneMemory
from tpusim.engine.stage_lane import MessageBoard, StageLane
from tpusim.engine.stage_memory import StageMemory
from tpusim.engine.timeline import (
    BUBBLE,
    CoreTime,
    LinkUse,
    Record,
    Records,
    Stats,
    Timeline,
    record_of,
)
from tpusim.program import Call

Called: TypeAlias = tuple[tuple[LanePart, CallTimes], ...]
"""The parts of a lane, and the times at which it ran each."""


class _HostTimes(NamedTuple):
    """The tasks of a lane's host, and the waits of the lane for it at its end."""

    tasks: list[Record]
    waits: list[Record]
    end_ps: int


def has_calls(program: CostedProgram) -> bool:
    """Return True if a lane calls segments."""
    return any(isinstance(op, Call) for op in program.body)


def run_calls(lanes: Sequence[CostedProgram], run_alone: RunAlone) -> Timeline:
    """Return the timeline of lanes that call segments; `run_alone` runs the tasks of one part.

    Raise ValueError for calls of segments and messages to lanes that do not exist, and for a
    message that is sent twice; StalledError for calls that wait for each other in a circle.
    """
    began = perf_counter()
    parts, board, env = LaneParts(run_alone), MessageBoard(), Environment(0)
    sends = _MessageSteps(len(lanes))
    stages = [StageLane(env, board, lane.name, parts.of(lane), sends.of(lane)) for lane in lanes]
    events = run_processes(env, stages)
    simulated = [part.lane for part in parts.all]
    events += sum(lane.events for lane in simulated)
    return timeline_of(lanes, stages, lane_stats(simulated, events, began))


class _MessageSteps:
    """The messages between lanes in integer units; one object of several lanes is one step."""

    __slots__ = ("_lanes", "_steps")

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes
        self._steps: dict[tuple[int, int], TaskStep] = {}

    def of(self, lane: CostedProgram) -> dict[tuple[str, int, float], TaskStep]:
        """Return the step of the messages of each segment of a lane to each other lane."""
        for sent in lane.messages:
            if not 0 <= sent.to < self._lanes:
                raise ValueError(f"lane {lane.name!r} sends to lane {sent.to} of {self._lanes}")
        return {
            (sent.segment, sent.to, sent.bytes): self._step(sent.task, lane)
            for sent in lane.messages
        }

    def _step(self, task: Task, lane: CostedProgram) -> TaskStep:
        key = id(task), id(lane.links)
        found = self._steps.get(key)
        if found is None:
            alone = replace(lane, body=(task,), segments=(), host=(), resident=(), messages=())
            found = self._steps[key] = compile_lane(alone).steps[0]
        return found


def timeline_of(
    lanes: Sequence[CostedProgram], stages: Sequence[StageLane], stats: Stats
) -> Timeline:
    """Return the timeline of lanes that have run to their ends, each as long as the longest."""
    hosts = [_host_times(at, lane, stages[at].end_ps) for at, lane in enumerate(lanes)]
    total = max(host.end_ps for host in hosts)
    waits: list[Record] = []
    links: list[LinkUse] = []
    memory: list[LaneMemory] = []
    stage_memory, called_parts = StageMemory(), list[Called]()
    for at, (lane, stage, host) in enumerate(zip(lanes, stages, hosts, strict=True)):
        runs = [part for _, part in stage.runs]
        calls = tuple(calls_of_each(zip(stage.starts, runs, strict=True)))
        called_parts.append(calls)
        waits += _lane_waits(at, stage, calls, host, total)
        links += _link_use(at, lane, stage, calls)
        profiles = [part.profile for part in runs]
        logs = [(part.profile, when) for part, when in calls]
        memory.append(stage_memory.memory(lane.resident, stage.starts, profiles, logs))
    ends = tuple((lane.name, host.end_ps) for lane, host in zip(lanes, hosts, strict=True))
    tasks = Records(lambda: _all_tasks(stages, called_parts, hosts), _core_time_of(called_parts))
    return Timeline(total, ends, tasks, tuple(waits), tuple(links), tuple(memory), stats)


def _core_time_of(called_parts: Iterable[Called]) -> CoreTime:
    """Return the picoseconds of the parts of all lanes on the core, by label and phase."""
    found: Counter[tuple[str, Phase]] = Counter()
    for calls in called_parts:
        for part, when in calls:
            for cell, picoseconds in part.core.items():
                found[cell] += when.repeats * picoseconds
    return found


def _all_tasks(
    stages: Sequence[StageLane], called_parts: Sequence[Called], hosts: Sequence[_HostTimes]
) -> Iterator[Record]:
    for at, (stage, calls, host) in enumerate(zip(stages, called_parts, hosts, strict=True)):
        yield from _lane_tasks(at, stage, calls)
        yield from host.tasks


def _host_times(number: int, lane: CostedProgram, end_ps: int) -> _HostTimes:
    """Return the host's tasks, one after another from the start, and the lane's waits for them."""
    tasks, waits, done = [], [], 0
    alone = replace(lane, body=(), segments=(), resident=(), messages=())
    for step in compile_lane(alone).host if lane.host else ():
        began, done = done, done + step.alone_ps
        tasks.append(record_of(number, step.task, began, done))
        if done > end_ps:
            waits.append(record_of(number, step.task, end_ps, done))
            end_ps = done
    return _HostTimes(tasks, waits, end_ps)


def _lane_tasks(lane: int, stage: StageLane, calls: Called) -> Iterator[Record]:
    """Yield the tasks of the parts of a lane, and then its messages."""
    yield from _records(lane, ((part.tasks, when) for part, when in calls))
    for link in stage.message_links.values():
        if link.departures:
            start, end = link.departures[0], link.departures[0] + link.step.alone_ps
            departures = CallTimes(tuple(link.departures))
            yield record_of(lane, link.step.task, start, end, (departures,))


def _lane_waits(
    lane: int, stage: StageLane, calls: Called, host: _HostTimes, total_ps: int
) -> Iterator[Record]:
    """Yield the waits within parts and between them, for the host, and for the longest lane."""
    yield from _records(lane, ((part.waits, when) for part, when in calls))
    yield from _waits_between_runs(lane, stage)
    yield from host.waits
    if host.end_ps < total_ps:
        phase = stage.runs[-1][1].phase if stage.runs else Phase.FORWARD
        yield Record(lane, BUBBLE, BUBBLE, phase, BUBBLE, host.end_ps, total_ps)


def _records(lane: int, ran: Iterable[tuple[RepeatedSteps, CallTimes]]) -> Iterator[Record]:
    """Yield the steps of each part once, with the times at which it ran."""
    for spans, calls in ran:
        first = calls.starts_ps[0]
        for (step, start, end), levels in spans:
            yield record_of(lane, step.task, first + start, first + end, (calls, *levels))


def _waits_between_runs(lane: int, stage: StageLane) -> Iterator[Record]:
    """Yield the waits for work of other lanes, and for messages in flight.

    Those that differ in their times alone are one record.
    """
    for (part, awaited, length), when in stage.waits.items():
        if isinstance(awaited, LanePart):
            name, label, stream = awaited.name, BUBBLE, BUBBLE
        else:
            name, label, stream = awaited.task.name, awaited.task.label, awaited.task.stream
        first, levels = when[0], (CallTimes(tuple(when)),)
        yield Record(lane, name, label, part.phase, stream, first, first + length, levels)


def _link_use(
    number: int, lane: CostedProgram, stage: StageLane, calls: Called
) -> Iterator[LinkUse]:
    """Yield the use of each link of a lane: by its parts as often as they ran, and its messages."""
    totals = [0] * len(lane.links)
    for part, when in calls:
        for link, volume in part.link_volumes:
            totals[link] += when.repeats * volume
    for sent in stage.message_links.values():
        for at, weight in sent.step.uses:
            totals[at] += len(sent.departures) * weight * sent.step.volume
    for (name, rate), volume in zip(lane.links, totals, strict=True):
        yield LinkUse(number, name, volume, nanobytes_per_ps(float(rate)))
