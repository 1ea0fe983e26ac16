"""The load of each link by label: over the step, and from moment to moment."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.costs import CostedProgram, Task, TaskLoop, TaskOp
from tpusim.engine import LinkUse, Record, TaskStep, compile_lane, fair_rates
from tpusim.program import Call
from tpusim.results import Result

Floats: TypeAlias = NDArray[np.float64]

BUSY = "busy: bytes carried, over what the link carries in that time at its full rate"
"""What every figure means by the busy share of a link, of a step or of a part of it."""

MOST_FLOWS = 50_000
"""Transfers of a step whose sharing of links is followed in `link_series`: half a second."""


class LinkLoad(NamedTuple):
    """The share of each link that tasks draw from `start_ps` to `end_ps`, by link and label."""

    start_ps: int
    end_ps: int
    shares: dict[str, dict[str, float]]


class _LaneTraffic(NamedTuple):
    """The distinct tasks of a lane in integer units: the name, step and count of each."""

    tasks: tuple[tuple[str, TaskStep, int], ...]
    links: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, costed: CostedProgram) -> "_LaneTraffic":
        """Return the lane of a program; segments may have different tasks of one name."""
        counted = list(_counted(costed))
        alone = (
            replace(task, name=str(number), deps=(), allocs=(), frees=())
            for number, (task, _) in enumerate(counted)
        )
        code = compile_lane(
            replace(costed, body=tuple(alone), segments=(), messages=(), resident=())
        )
        names = [(task.name, times) for task, times in counted]
        names += [(task.name, 1) for task in costed.host]
        steps = zip(names, (*code.steps, *code.host), strict=True)
        return cls(tuple((name, step, times) for (name, times), step in steps), code.links)


def _counted(costed: CostedProgram) -> Iterator[tuple[Task, int]]:
    """Yield each task of a program, of its segments and of the messages, and its count."""
    calls = [op for op in costed.body if isinstance(op, Call)]
    yield from _in_loops([op for op in costed.body if not isinstance(op, Call)], 1)
    runs = Counter(call.segment for call in calls)
    for segment in costed.segments:
        yield from _in_loops(segment.body, runs[segment.name])
    sent = Counter((call.segment, s.to, float(s.bytes)) for call in calls for s in call.sends)
    for message in costed.messages:
        yield message.task, sent[message.segment, message.to, message.bytes]


def _in_loops(body: Iterable[TaskOp], times: int) -> Iterator[tuple[Task, int]]:
    for op in body:
        if isinstance(op, TaskLoop):
            yield from _in_loops(op.body, times * op.trips)
        else:
            yield op, times


def link_volumes(result: Result) -> dict[str, Counter[str]]:
    """Return the nanobytes that each link carried in the step, by label of the tasks.

    They are those of the link's busiest lane, and sum to the `volume_nb` of `timeline.links`.
    """
    busiest: dict[str, LinkUse] = {}
    for use in result.timeline.links:
        if use.link not in busiest or use.volume_nb > busiest[use.link].volume_nb:
            busiest[use.link] = use
    costed = result.costed()
    volumes = {lane: _volumes(costed[lane]) for lane in {use.lane for use in busiest.values()}}
    return {name: volumes[use.lane][name] for name, use in busiest.items()}


def _volumes(costed: CostedProgram) -> dict[str, Counter[str]]:
    """Return the nanobytes of one lane, by link and label."""
    lane = _LaneTraffic.of(costed)
    names = [name for name, _ in lane.links]
    volumes: dict[str, Counter[str]] = {name: Counter() for name in names}
    for _, step, times in lane.tasks:
        for link, weight in step.uses:
            volumes[names[link]][step.task.label] += weight * step.volume * times
    return volumes


def link_loads(result: Result, start_ps: int, end_ps: int) -> list[LinkLoad]:
    """Return the load of the links between two times, a row for each span of constant load.

    A task draws at the engine's rate, the fair one among those in flight, from the end of its delay
    to its own end.
    """
    costed = result.costed()
    lane = _LaneTraffic.of(costed[result.lane])
    flows = _flows(result.shown.tasks, lane, start_ps, end_ps)
    times = sorted({start_ps, end_ps, *(time for _, *span in flows for time in span)})
    rows, active, at = [], list[tuple[TaskStep, int, int]](), 0
    for begin, end in pairwise(times):
        active = [flow for flow in active if flow[2] > begin]
        while at < len(flows) and flows[at][1] <= begin:
            active += [flows[at]] if flows[at][2] > begin else []
            at += 1
        if start_ps <= begin < end_ps:
            rows.append(LinkLoad(begin, end, _shares([step for step, _, _ in active], lane.links)))
    return rows


def _flows(
    records: Sequence[Record], lane: _LaneTraffic, start_ps: int, end_ps: int
) -> list[tuple[TaskStep, int, int]]:
    """Return step, start and end of each flow that may be in flight between two times."""
    flows = []
    for record, step in _moving(records, lane):
        starts = starts_between(record, start_ps, end_ps)
        ends = (start + record.duration_ps for start in starts)
        flows += [(step, end - record.duration_ps + step.delay_ps, end) for end in ends]
    return sorted(flows, key=lambda flow: flow[1])


def _moving(records: Iterable[Record], lane: _LaneTraffic) -> Iterator[tuple[Record, TaskStep]]:
    """Yield the records that move bytes, with their steps.

    Of several steps of one name, a record belongs to the one whose isolated time is nearest.
    """
    known: dict[str, list[TaskStep]] = {}
    for name, step, _ in lane.tasks:
        if step.volume:
            known.setdefault(name, []).append(step)
    for record in (record for record in records if record.name in known):
        length = record.duration_ps
        yield record, min(known[record.name], key=lambda step: abs(step.alone_ps - length))


def link_series(result: Result, edges_ps: Floats) -> dict[str, Floats]:
    """Return the busy share of each link of a lane between one edge and the next, at most 1.

    Times the lengths, the shares sum to the link's busy time in the step (`LinkUse.busy_ps`) if the
    edges span it. Two cases have less: a pipeline whose messages and segments share links, which
    the engine neglects; and more than `MOST_FLOWS` flows, whose bytes are spread evenly over each,
    where several together would exceed the link.

    edges_ps: [edge], ascending.
    """
    lane = _LaneTraffic.of(result.costed()[result.lane])
    moving = list(_moving(result.shown.tasks, lane))
    flows: dict[str, list[tuple[Floats, Floats, float]]] = {name: [] for name, _ in lane.links}
    if sum(record.count for record, _ in moving) <= MOST_FLOWS:
        for load in link_loads(result, 0, result.timeline.total_ps):
            span = np.array([[load.start_ps], [load.end_ps]], dtype=float)
            for name, shares in load.shares.items():
                flows[name].append((*span, sum(shares.values()) * (load.end_ps - load.start_ps)))
    else:
        for record, step in moving:
            ends = record_starts(record) + record.duration_ps
            starts = ends - record.duration_ps + step.delay_ps
            for link, weight in step.uses:
                name, rate = lane.links[link]
                flows[name].append((starts, ends, weight * step.volume / rate))
    return {name: np.minimum(1.0, spread_evenly(each, edges_ps)) for name, each in flows.items()}


def spread_evenly(flows: Sequence[tuple[Floats, Floats, float]], edges_ps: Floats) -> Floats:
    """Return the share of the time between edges that flows take, each spread over its own time.

    flows: starts and ends (ps) of equal flows, and the picoseconds that each counts.
    edges_ps: [edge], ascending.
    """
    if not flows:
        return np.zeros(len(edges_ps) - 1)
    starts, ends = (np.concatenate([each[side] for each in flows]) for side in (0, 1))
    counts = np.concatenate([np.full(len(each[0]), each[2]) for each in flows])
    slopes = counts / np.maximum(ends - starts, 1)
    ends = np.maximum(ends, starts + 1)
    times, changes = np.concatenate([starts, ends]), np.concatenate([slopes, -slopes])
    order = np.argsort(times, kind="stable")
    times, rates = times[order], np.cumsum(changes[order])
    so_far = np.concatenate([[0.0], np.cumsum(rates[:-1] * np.diff(times))])
    shares: Floats = np.diff(np.interp(edges_ps, times, so_far)) / np.diff(edges_ps)
    return shares


def record_starts(record: Record) -> Floats:
    """Return the start of each repetition in picoseconds, as an array."""
    starts = np.array([float(record.start_ps)])
    for level in record.repeats:
        shifts = np.fromiter(level.shifts(), dtype=float, count=level.repeats)
        starts = (starts[:, None] + shifts).ravel()
    return starts


def starts_between(record: Record, start_ps: int, end_ps: int) -> Iterator[int]:
    """Yield the starts of a record's repetitions that overlap the span between two times."""
    earliest = start_ps - record.duration_ps
    return (start for start in record.starts() if earliest < start < end_ps)


def _shares(
    steps: Sequence[TaskStep], links: Sequence[tuple[str, int]]
) -> dict[str, dict[str, float]]:
    shares: dict[str, dict[str, float]] = {}
    rates = fair_rates(steps, [rate for _, rate in links]) if steps else []
    for step, drawn in zip(steps, rates, strict=True):
        for link, weight in step.uses:
            name, capacity = links[link]
            labels = shares.setdefault(name, {})
            labels[step.task.label] = labels.get(step.task.label, 0) + weight * drawn / capacity
    return shares
