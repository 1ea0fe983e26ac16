"""The load of each link by label: over the step, and from moment to moment."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.costs import CostedProgram, Task, TaskLoop, TaskOp
from tpusim.engine import LinkUse, Record, TaskStep, Timeline, compile_lane, fair_rates
from tpusim.program import Call
from tpusim.results import Result

Floats: TypeAlias = NDArray[np.float64]

BUSY = "bytes carried, over what the link carries in that time at its full rate"
"""What every figure means by the busy share of a link, of a step or of a part of it."""

MOST_FLOWS = 50_000
"""Transfers of a step whose sharing of links is followed in `link_series`: half a second."""


_Flow: TypeAlias = tuple[TaskStep, int, int]
"""The step of a flow, its start and its end (ps)."""

_Spread: TypeAlias = tuple[Floats, Floats, Floats | float]
"""The starts and ends of several flows, and what each counts."""


class LinkLoad(NamedTuple):
    """The share of each link that tasks draw from `start_ps` to `end_ps`, by link and label.

    Spans in which the same tasks are in flight share one mapping.
    """

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


def busiest_uses(timeline: Timeline) -> dict[str, LinkUse]:
    """Return the use of each link in the lane in which it is busy for longest."""
    busiest: dict[str, LinkUse] = {}
    for use in timeline.links:
        if use.link not in busiest or use.busy_ps > busiest[use.link].busy_ps:
            busiest[use.link] = use
    return busiest


def link_volumes(result: Result) -> dict[str, Counter[str]]:
    """Return the nanobytes that each link carried in the step, by label of the tasks.

    They are those of the link's busiest lane (`busiest_uses`), and sum to its `volume_nb`.
    """
    busiest = busiest_uses(result.timeline)
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
    to its own end. Where devices differ, others may hold it up, and it draws evenly over that time.
    """
    costed = result.costed()
    lane = _LaneTraffic.of(costed[result.lane])
    flows = _flows(result.shown.tasks, lane, start_ps, end_ps)
    times = sorted({start_ps, end_ps, *(time for _, *span in flows for time in span)})
    rows, active, at = [], list[_Flow](), 0
    known: dict[tuple[int, ...], dict[str, dict[str, float]]] = {}
    for begin, end in pairwise(times):
        active = [flow for flow in active if flow[2] > begin]
        while at < len(flows) and flows[at][1] <= begin:
            active += [flows[at]] if flows[at][2] > begin else []
            at += 1
        if start_ps <= begin < end_ps:
            steps = [step for step, _, _ in active]
            key = tuple(map(id, steps))
            if result.timeline.devices:
                known[key] = _shares(steps, _even_rates(active), lane.links)
            elif key not in known:
                known[key] = _shares(steps, _fair_rates(steps, lane), lane.links)
            rows.append(LinkLoad(begin, end, known[key]))
    return rows


def _fair_rates(steps: Sequence[TaskStep], lane: _LaneTraffic) -> Sequence[float]:
    """Return the rate of each flow (nB/ps), those of the engine; they follow from the tasks."""
    rates = [rate for _, rate in lane.links]
    return fair_rates(steps, rates) if steps else ()


def _even_rates(active: Sequence[_Flow]) -> Sequence[float]:
    """Return the rate of each flow (nB/ps), its volume over its time."""
    return [step.volume / max(end - start, 1) for step, start, end in active]


def _flows(
    records: Sequence[Record], lane: _LaneTraffic, start_ps: int, end_ps: int
) -> list[_Flow]:
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
    edges span it. In a pipeline, where devices differ, and of more than `MOST_FLOWS` flows, bytes
    are spread evenly over each flow. Together they may exceed a link for a moment, and the excess
    then counts in the parts after it.

    edges_ps: [edge], ascending.
    """
    lane = _LaneTraffic.of(result.costed()[result.lane])
    moving = list(_moving(result.shown.tasks, lane))
    flows: dict[str, list[_Spread]] = {name: [] for name, _ in lane.links}
    followed = not result.timeline.devices and len(result.programs) == 1
    if followed and sum(record.count for record, _ in moving) <= MOST_FLOWS:
        alike: dict[int, list[LinkLoad]] = {}
        for load in link_loads(result, 0, result.timeline.total_ps):
            alike.setdefault(id(load.shares), []).append(load)
        for loads in alike.values():
            starts = np.array([load.start_ps for load in loads], dtype=float)
            ends = np.array([load.end_ps for load in loads], dtype=float)
            for name, labels in loads[0].shares.items():
                flows[name].append((starts, ends, sum(labels.values()) * (ends - starts)))
    else:
        for record, step in moving:
            ends = record_starts(record) + record.duration_ps
            starts = ends - record.duration_ps + step.delay_ps
            for link, weight in step.uses:
                name, rate = lane.links[link]
                flows[name].append((starts, ends, weight * step.volume / rate))
    lengths = np.diff(edges_ps)
    return {
        name: _at_most_full(spread_evenly(each, edges_ps), lengths) for name, each in flows.items()
    }


def _at_most_full(shares: Floats, lengths: Floats) -> Floats:
    """Return shares of parts of the step, at most 1, with the same sum of `shares * lengths`.

    What exceeds 1 in a part counts in those after it, and at the end in those before.
    """
    for order in (slice(None), slice(None, None, -1)):
        if (shares <= 1).all():
            return shares
        wanted, room = (shares * lengths)[order], lengths[order]
        kept, excess = np.empty_like(wanted), 0.0
        for part, (want, most) in enumerate(zip(wanted, room, strict=True)):
            kept[part] = min(want + excess, most)
            excess += want - kept[part]
        shares = kept[order] / lengths
    return np.minimum(1.0, shares)


def spread_evenly(flows: Sequence[_Spread], edges_ps: Floats) -> Floats:
    """Return the share of the time between edges that flows take, each spread over its own time.

    flows: starts and ends (ps) of flows, and the picoseconds that each counts, or all.
    edges_ps: [edge], ascending.
    """
    if not flows:
        return np.zeros(len(edges_ps) - 1)
    starts, ends = (np.concatenate([each[side] for each in flows]) for side in (0, 1))
    counts = np.concatenate([np.broadcast_to(each[2], each[0].shape) for each in flows])
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


def starts_between(record: Record, start_ps: int, end_ps: int) -> list[int]:
    """Return the starts of a record's repetitions that overlap the span between two times."""
    starts = record_starts(record)
    overlap = (starts > start_ps - record.duration_ps) & (starts < end_ps)
    return [int(start) for start in starts[overlap]]


def _shares(
    steps: Sequence[TaskStep], rates: Sequence[float], links: Sequence[tuple[str, int]]
) -> dict[str, dict[str, float]]:
    shares: dict[str, dict[str, float]] = {}
    for step, drawn in zip(steps, rates, strict=True):
        for link, weight in step.uses:
            name, capacity = links[link]
            labels = shares.setdefault(name, {})
            labels[step.task.label] = labels.get(step.task.label, 0) + weight * drawn / capacity
    for labels in shares.values():
        if (total := sum(labels.values())) > 1:
            labels.update({label: share / total for label, share in labels.items()})
    return shares
