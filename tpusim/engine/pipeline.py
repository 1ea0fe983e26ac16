"""Run lanes that call segments, and put their timeline together.

Each part of the lanes is simulated once, then the lanes step through their calls. A record of a
part is in the timeline once, with the times of all its calls.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from time import perf_counter
from typing import NamedTuple, TypeAlias

from tpusim.base.phase import Phase
from tpusim.engine.instructions import TaskStep
from tpusim.engine.journal import CallTimes
from tpusim.engine.lane import lane_stats
from tpusim.engine.lane_part import LanePart, RepeatedSteps, RunAlone, lane_part
from tpusim.engine.memory import LaneMemory
from tpusim.engine.stage_code import PipelineCode
from tpusim.engine.stage_lane import StageLane, run_stages
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

Called: TypeAlias = tuple[tuple[LanePart, CallTimes], ...]
"""The parts of a lane, and the times at which it ran each."""


class _HostTimes(NamedTuple):
    """The tasks of a lane's host, and the waits of the lane for it at its end."""

    tasks: list[Record]
    waits: list[Record]
    end_ps: int


def run_pipeline(code: PipelineCode, run_alone: RunAlone) -> Timeline:
    """Return the timeline of the lanes of a pipeline; `run_alone` runs the tasks of one part.

    Each run of a part counts as an event.
    """
    began = perf_counter()
    parts = [lane_part(part, run_alone) for part in code.parts]
    stages = run_stages(code, parts)
    simulated = [part.lane for part in parts]
    events = len(code.order) + sum(lane.events for lane in simulated)
    return _timeline(stages, parts, lane_stats(simulated, events, began))


def _timeline(stages: Sequence[StageLane], parts: Sequence[LanePart], stats: Stats) -> Timeline:
    """Return the timeline of lanes that have run to their ends, each as long as the longest."""
    hosts = [_host_times(at, stage) for at, stage in enumerate(stages)]
    total = max(host.end_ps for host in hosts)
    waits: list[Record] = []
    links: list[LinkUse] = []
    memory: list[LaneMemory] = []
    stage_memory, called_parts = StageMemory(), list[Called]()
    for at, (stage, host) in enumerate(zip(stages, hosts, strict=True)):
        calls = _calls(stage, parts)
        called_parts.append(calls)
        waits += _lane_waits(at, stage, calls, parts, host, total)
        links += _link_use(at, stage, calls)
        profiles = [parts[run.part].profile for run in stage.code.runs]
        logs = [(part.profile, when) for part, when in calls]
        memory.append(stage_memory.memory(stage.code.resident, stage.starts, profiles, logs))
    ends = tuple((stage.code.name, host.end_ps) for stage, host in zip(stages, hosts, strict=True))
    tasks = Records(lambda: _all_tasks(stages, called_parts, hosts), _core_time_of(called_parts))
    return Timeline(total, ends, tasks, tuple(waits), tuple(links), tuple(memory), stats)


def _calls(stage: StageLane, parts: Sequence[LanePart]) -> Called:
    starts = stage.starts
    return tuple(
        (parts[part], CallTimes(tuple([starts[run] for run in runs])))
        for part, runs in stage.code.calls
    )


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


def _host_times(number: int, stage: StageLane) -> _HostTimes:
    """Return the host's tasks, one after another from the start, and the lane's waits for them."""
    tasks, waits, done, end_ps = [], [], 0, stage.end_ps
    for step in stage.code.host:
        began, done = done, done + step.alone_ps
        tasks.append(record_of(number, step.task, began, done))
        if done > end_ps:
            waits.append(record_of(number, step.task, end_ps, done))
            end_ps = done
    return _HostTimes(tasks, waits, end_ps)


def _lane_tasks(lane: int, stage: StageLane, calls: Called) -> Iterator[Record]:
    """Yield the tasks of the parts of a lane, and then its messages."""
    yield from _records(lane, ((part.tasks, when) for part, when in calls))
    for departures, (_, step) in zip(stage.departures, stage.code.messages, strict=True):
        if departures:
            start, times = departures[0], CallTimes(tuple(departures))
            yield record_of(lane, step.task, start, start + step.alone_ps, (times,))


def _lane_waits(
    lane: int,
    stage: StageLane,
    calls: Called,
    parts: Sequence[LanePart],
    host: _HostTimes,
    total_ps: int,
) -> Iterator[Record]:
    """Yield the waits within parts and between them, for the host, and for the longest lane."""
    yield from _records(lane, ((part.waits, when) for part, when in calls))
    yield from _waits_between_runs(lane, stage)
    yield from host.waits
    if host.end_ps < total_ps:
        runs = stage.code.runs
        phase = parts[runs[-1].part].phase if runs else Phase.FORWARD
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
        if isinstance(awaited, TaskStep):
            name, label, stream = awaited.task.name, awaited.task.label, awaited.task.stream
        else:
            name, label, stream = awaited.name, BUBBLE, BUBBLE
        first, levels = when[0], (CallTimes(tuple(when)),)
        yield Record(lane, name, label, part.phase, stream, first, first + length, levels)


def _link_use(number: int, stage: StageLane, calls: Called) -> Iterator[LinkUse]:
    """Yield the use of each link of a lane: by its parts as often as they ran, and its messages."""
    code = stage.code
    totals = [0] * len(code.links)
    for part, when in calls:
        for link, volume in part.link_volumes:
            totals[link] += when.repeats * volume
    for departures, (_, step) in zip(stage.departures, code.messages, strict=True):
        for at, weight in step.uses:
            totals[at] += len(departures) * weight * step.volume
    for (name, rate), volume in zip(code.links, totals, strict=True):
        yield LinkUse(number, name, volume, rate)
