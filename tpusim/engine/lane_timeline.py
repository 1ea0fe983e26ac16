"""The timeline of lanes that have run to their ends."""

from collections import Counter
from collections.abc import Iterator, Sequence

from tpusim.costs import STRAGGLERS
from tpusim.engine.journal import JournalEntry, TimedStep, flatten
from tpusim.engine.lane import Lane
from tpusim.engine.lane_part import core_time_of, link_volumes
from tpusim.engine.memory import lane_memory, memory_profile
from tpusim.engine.timeline import LinkUse, Record, Records, Stats, Timeline, record_of
from tpusim.program import Phase


def lanes_timeline(lanes: Sequence[Lane], stats: Stats, devices: tuple[int, ...] = ()) -> Timeline:
    """Return the timeline of lanes.

    devices: where the lanes meet, the number that each stands for; lanes that end before the last
        wait for it.
    """
    waits = [wait for at, lane in enumerate(lanes) for wait in _records(at, lane.journal.waits)]
    waits += _last_waits(lanes) if devices else ()
    core: Counter[tuple[str, Phase]] = Counter()
    for at, lane in enumerate(lanes):
        for cell, picoseconds in core_time_of(flatten(lane.journal.tasks)).items():
            core[cell] += picoseconds * (devices[at] if devices else 1)
    return Timeline(
        total_ps=max((lane.end_ps for lane in lanes), default=0),
        lanes=tuple((lane.code.name, lane.end_ps) for lane in lanes),
        tasks=Records(
            lambda: (
                record
                for at, lane in enumerate(lanes)
                for record in _records(at, lane.journal.tasks)
            ),
            core,
        ),
        waits=tuple(wait for wait in waits if wait.duration_ps),
        links=tuple(use for at, lane in enumerate(lanes) for use in _link_uses(at, lane)),
        memory=tuple(
            lane_memory(lane.code.resident, memory_profile(lane.code, lane.journal.changes))
            for lane in lanes
        ),
        stats=stats,
        devices=devices,
    )


def _last_waits(lanes: Sequence[Lane]) -> Iterator[Record]:
    """Yield the waits of lanes from their ends to the end of the last lane."""
    last = max(lanes, key=lambda lane: lane.end_ps)
    for at, lane in enumerate(lanes):
        phase = lane.code.steps[-1].task.phase if lane.code.steps else Phase.FORWARD
        start, end, name = lane.end_ps, last.end_ps, last.code.name
        yield Record(at, STRAGGLERS, STRAGGLERS, phase, name, start, end)


def _records(lane: int, entries: Sequence[JournalEntry[TimedStep]]) -> Iterator[Record]:
    for (step, start, end), levels in flatten(entries):
        yield record_of(lane, step.task, start, end, levels)


def _link_uses(number: int, lane: Lane) -> list[LinkUse]:
    code = lane.code
    carried = link_volumes(tuple(flatten(lane.journal.tasks)), code.first_link, len(code.links))
    return [
        LinkUse(number, name, volume, rate)
        for (name, rate), volume in zip(code.links, carried, strict=True)
    ]
