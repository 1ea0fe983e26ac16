"""What happened when, on tracks: slices that never overlap on one track, and the level of HBM."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tpusim.costs.tasks import CORE
from tpusim.engine import Record, Timeline
from tpusim.engine.clock import whole_bytes
from tpusim.report.unroll import (
    Gap,
    change_blocks,
    each_call,
    each_change,
    extent,
    record_blocks,
    running,
    unrolled,
)
from tpusim.result import Result
from tpusim.stages import PAUSES


@dataclass(frozen=True, slots=True)
class Slice:
    """A record from one time to another, or, where there is none, `trips` that are not shown.

    The core works in a record of its own stream, and stands still for one of another stream.
    """

    start_ps: int
    end_ps: int
    record: Record | None
    trips: int = 0

    @property
    def length_ps(self) -> int:
        """How long it takes."""
        return self.end_ps - self.start_ps


def core_slices(timeline: Timeline, lane: int = 0, *, every: bool = False) -> list[Slice]:
    """What the core runs and waits for, without gap from 0 to its end; what takes no time is left.

    every: each repetition; otherwise the first and last ones, and one slice for all between. Then
    the slots of a pipeline between the first and the last of their kind are left out.
    """
    ran = (record for record in timeline.tasks if record.stream == CORE and record.duration_ps)
    records = [record for record in (*ran, *timeline.waits) if record.lane == lane]
    return list(_slices(_calls(records, every), timeline, every))


def stream_tracks(
    timeline: Timeline, lane: int = 0, *, every: bool = False
) -> dict[str, list[list[Slice]]]:
    """The transfers of each stream, on as few tracks as keep those apart that overlap."""
    streams: dict[str, list[Record]] = {}
    for record in timeline.tasks:
        if record.lane == lane and record.stream != CORE and record.duration_ps:
            streams.setdefault(record.stream, []).append(record)
    return {
        name: _tracks(_slices(_calls(streams[name], every), timeline, every))
        for name in sorted(streams)
    }


def _calls(records: Sequence[Record], every: bool) -> list[Record]:
    """Each call, or the first and the last; of waits for stages and messages all."""
    pauses = [record for record in records if record.label in PAUSES]
    others = (record for record in records if record.label not in PAUSES)
    found = [*each_call(pauses), *each_call(others, every)]
    return sorted(found, key=lambda record: record.end_ps)


def memory_levels(result: Result, lane: int = 0, *, every: bool = True) -> list[tuple[int, int]]:
    """(time in ps, bytes held from then on), from 0, in the order in which they are reached.

    What is lost between buffers counts all along, as the compiler lays them out once.
    every: each repetition; otherwise the first and last ones, and straight from one to the other.
    Either way the highest level is the peak.
    """
    program = result.programs[lane]
    level = sum(whole_bytes(float(alloc.bytes)) for alloc in program.resident)
    level += result.idle_bytes(lane)
    changes = change_blocks(each_change(result.timeline.memory[lane].changes, every))
    return [(0, level), *running(changes, level, every=every)]


def _slices(records: Sequence[Record], timeline: Timeline, every: bool) -> Iterator[Slice]:
    trips = {(fold.repeats + 1, fold.period_ps): fold.trips for fold in timeline.stats.folds}
    for entry in unrolled(record_blocks(records), every):
        if isinstance(entry, Gap):
            first, last = extent(entry.block.entries)
            repeats, period = entry.block.level
            start = last + entry.shift_ps
            end = first + entry.shift_ps + (repeats - 1) * period
            if start < end:
                yield Slice(start, end, None, (repeats - 2) * trips[entry.block.level])
        else:
            shift, record = entry
            yield Slice(record.start_ps + shift, record.end_ps + shift, record)


def _tracks(slices: Iterable[Slice]) -> list[list[Slice]]:
    """Each slice on the first track that is free when it starts."""
    tracks: list[list[Slice]] = []
    for each in sorted(slices, key=lambda each: (each.start_ps, each.end_ps)):
        for track in tracks:
            if track[-1].end_ps <= each.start_ps:
                track.append(each)
                break
        else:
            tracks.append([each])
    return tracks
