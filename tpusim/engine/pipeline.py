"""Run lanes that call segments, and put their timeline together."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from time import perf_counter
from typing import NamedTuple

from simpy import Environment

from tpusim.costs.tasks import CostedProgram, Task, TaskCall
from tpusim.engine.code import Step
from tpusim.engine.compile import compile_lane
from tpusim.engine.journal import Calls, Level, called
from tpusim.engine.memory import memory_of_runs
from tpusim.engine.part import Alone, Parts, Spans
from tpusim.engine.progress import drive
from tpusim.engine.stage import Pause, Post, Run, Sent, Stage, Way
from tpusim.engine.timeline import LinkUse, Record, Stats, Timeline
from tpusim.phase import Phase

BUBBLE = "bubble"
"""The label, stream and, at a lane's end, name of the core's waits for lanes that are at work."""


def has_calls(program: CostedProgram) -> bool:
    """Whether a lane calls segments."""
    return any(isinstance(op, TaskCall) for op in program.body)


def run_calls(lanes: Sequence[CostedProgram], alone: Alone) -> Timeline:
    """The timeline of lanes that call segments; `alone` runs the tasks of one part to their end.

    Raises ValueError for calls of segments and messages to lanes that are not there, and for a
    message that is sent twice; StalledError for calls that wait for each other in a circle.
    """
    began = perf_counter()
    parts, post, env = Parts(alone), Post(), Environment(0)
    runs = _runs(lanes, parts)
    stages = [
        Stage(env, post, number, lane.name, runs[number]) for number, lane in enumerate(lanes)
    ]
    events = drive(env, stages)
    stats = Stats(
        events=events + sum(part.lane.events for part in parts.all),
        trips_simulated=sum(part.lane.trips for part in parts.all),
        trips=sum(part.lane.code.trips for part in parts.all),
        folds=tuple(made for part in parts.all for made in part.lane.folder.folds),
        seconds=perf_counter() - began,
    )
    return _timeline(lanes, stages, post, stats)


def _runs(lanes: Sequence[CostedProgram], parts: Parts) -> list[list[Run]]:
    """What each lane runs, one after another, with the ways of its messages in integer units."""
    steps: dict[tuple[int, object], Step] = {}
    messages: set[str] = set()
    found = []
    for lane in lanes:
        mine = []
        for call, part in parts.of(lane):
            ways = []
            for send in call.sends:
                step = steps.get((id(send.task), lane.links))
                if step is None:
                    step = steps[id(send.task), lane.links] = _step(send.task, lane)
                if send.message in messages or not 0 <= send.to < len(lanes):
                    raise ValueError(f"message {send.message!r} is sent twice, or to no lane")
                messages.add(send.message)
                ways.append(Way(send.message, send.to, step))
            mine.append(Run(call, part, tuple(ways)))
        found.append(mine)
    return found


def _step(task: Task, lane: CostedProgram) -> Step:
    """A task outside of all bodies, in integer units."""
    return compile_lane(replace(lane, body=(task,), segments=(), host=(), resident=())).steps[0]


class _Host(NamedTuple):
    """What the host of a lane does, and the waits of the lane for it at its end."""

    tasks: list[Record]
    waits: list[Record]
    end_ps: int


def _host(number: int, lane: CostedProgram, end_ps: int) -> _Host:
    tasks, waits, done = [], [], 0
    for step in compile_lane(replace(lane, body=(), segments=(), resident=())).host:
        began, done = done, done + step.alone_ps
        tasks.append(_record(number, step.task, began, done))
        if done > end_ps:
            waits.append(_record(number, step.task, end_ps, done))
            end_ps = done
    return _Host(tasks, waits, end_ps)


def _record(lane: int, task: Task, start: int, end: int, levels: tuple[Level, ...] = ()) -> Record:
    return Record(lane, task.name, task.label, task.phase, task.stream, start, end, levels)


def _timeline(
    lanes: Sequence[CostedProgram], stages: Sequence[Stage], post: Post, stats: Stats
) -> Timeline:
    hosts = [_host(at, lane, stages[at].end_ps) for at, lane in enumerate(lanes)]
    total = max(host.end_ps for host in hosts)
    tasks: list[Record] = []
    waits: list[Record] = []
    links: list[LinkUse] = []
    memory = []
    sent = _by_sender(post, len(lanes))
    for stage, host, lane in zip(stages, hosts, lanes, strict=True):
        profiles = [
            (start, run.part.profile) for start, run in zip(stage.starts, stage.runs, strict=True)
        ]
        runs = [(start, run.part) for start, run in zip(stage.starts, stage.runs, strict=True)]
        ran = tuple(called(runs))
        tasks += _records(stage.number, [(part.tasks, calls) for part, calls in ran])
        tasks += _sends(stage.number, sent[stage.number])
        tasks += host.tasks
        waits += _records(stage.number, [(part.waits, calls) for part, calls in ran])
        waits += _pauses(stage)
        waits += host.waits
        if host.end_ps < total:
            phase = stage.runs[-1].part.phase if stage.runs else Phase.FORWARD
            waits.append(Record(stage.number, BUBBLE, BUBBLE, phase, BUBBLE, host.end_ps, total))
        links += _links(stage, lane, sent[stage.number])
        memory.append(memory_of_runs(lane.resident, profiles))
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
            yield _record(lane, step.task, first + start, first + end, (calls, *levels))


def _sends(lane: int, sent: Iterable[Sent]) -> Iterator[Record]:
    """Each task that sends once, with the times of all its messages."""
    for step, calls in called((each.leaves_ps, each.way.step) for each in sent):
        first = calls.starts_ps[0]
        yield _record(lane, step.task, first, first + step.alone_ps, (calls,))


def _by_sender(post: Post, lanes: int) -> list[list[Sent]]:
    found: list[list[Sent]] = [[] for _ in range(lanes)]
    for sent in post.sent.values():
        found[sent.sender].append(sent)
    return found


class _Wait(NamedTuple):
    """What waits have in common that differ in their times alone."""

    name: str
    label: str
    phase: Phase
    stream: str
    length_ps: int


def _pauses(stage: Stage) -> Iterator[Record]:
    """The waits between runs: for work of other lanes, and for messages on their way."""
    starts: dict[_Wait, list[int]] = {}
    for pause in stage.pauses:
        for wait, start in _split(pause):
            starts.setdefault(wait, []).append(start)
    for (name, label, phase, stream, length), times_ps in starts.items():
        first, calls = times_ps[0], Calls(tuple(times_ps))
        yield Record(stage.number, name, label, phase, stream, first, first + length, (calls,))


def _split(pause: Pause) -> Iterator[tuple[_Wait, int]]:
    """A wait as one for the maker of a message, and one for the message itself."""
    phase, task = pause.run.part.phase, pause.late.way.step.task
    if pause.start_ps < pause.made_ps:
        length = pause.made_ps - pause.start_ps
        yield _Wait(pause.late.run.part.name, BUBBLE, phase, BUBBLE, length), pause.start_ps
    if pause.made_ps < pause.end_ps:
        length = pause.end_ps - pause.made_ps
        yield _Wait(task.name, task.label, phase, task.stream, length), pause.made_ps


def _links(stage: Stage, lane: CostedProgram, sent: Sequence[Sent]) -> Iterator[LinkUse]:
    """What each link of a lane carried: its parts as often as they ran, and its messages."""
    code = compile_lane(replace(lane, body=(), segments=(), resident=(), host=()))
    totals = [0] * len(code.links)
    counts = Counter(id(run.part) for run in stage.runs)
    for part in {id(run.part): run.part for run in stage.runs}.values():
        for link, volume in enumerate(part.volumes):
            totals[link] += counts[id(part)] * volume
    for step, many in Counter(each.way.step for each in sent).items():
        for link, weight in step.uses:
            totals[link] += many * weight * step.volume
    for (name, rate), volume in zip(code.links, totals, strict=True):
        yield LinkUse(stage.number, name, volume, rate)
