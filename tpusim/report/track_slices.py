"""Tracks of slices that never overlap, and the level of HBM over the step."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tpusim.costs import CORE, ON_HOST
from tpusim.engine import Record, Timeline, whole_bytes
from tpusim.report.unroll import (
    HiddenRepetitions,
    running_levels,
    split_calls,
    split_changes,
    unroll_blocks,
)
from tpusim.results import PAUSES, Result
from tpusim.results.repeated_blocks import block_extent, change_blocks, record_blocks
from tpusim.results.result import FRAGMENTATION_LABEL, resident_bytes


@dataclass(frozen=True, slots=True)
class TrackSlice:
    """A record from one time to another, or, without a record, `trips` that are not shown.

    In a record of its own stream the core works; in one of another stream it waits.
    """

    start_ps: int
    end_ps: int
    record: Record | None
    trips: int = 0

    @property
    def length_ps(self) -> int:
        """The length of the slice."""
        return self.end_ps - self.start_ps


def core_slices(timeline: Timeline, lane: int = 0, *, every: bool = False) -> list[TrackSlice]:
    """Return the tasks and waits of the core, without gaps, except those that take no time.

    every: True for each repetition; False for the first and the last, with one slice for all
        between, and without the slots of a pipeline between the first and the last of their kind.
    """
    tasks = (record for record in timeline.tasks if record.stream == CORE and record.duration_ps)
    records = [record for record in (*tasks, *timeline.waits) if record.lane == lane]
    return list(_slices(_calls(records, every), timeline, every))


def stream_tracks(
    timeline: Timeline, lane: int = 0, *, every: bool = False
) -> dict[str, list[list[TrackSlice]]]:
    """Return the transfers of each stream, on the fewest tracks on which none overlap.

    Streams are in order of their names, and the stages of the hosts in that of the pipeline.
    """
    streams: dict[str, list[Record]] = {}
    for record in timeline.tasks:
        if record.lane == lane and record.stream != CORE and record.duration_ps:
            streams.setdefault(record.stream, []).append(record)
    return {
        name: _tracks(_slices(_calls(streams[name], every), timeline, every))
        for name in sorted(streams, key=_without_stage)
    }


def _without_stage(stream: str) -> str:
    """Return the name by which streams are in order: stages of the hosts keep that of the run."""
    return ON_HOST if stream.startswith(f"{ON_HOST} ") else stream


def _calls(records: Sequence[Record], every: bool) -> list[Record]:
    """Return each call, or the first and the last; all waits for stages and messages."""
    pauses = [record for record in records if record.label in PAUSES]
    others = (record for record in records if record.label not in PAUSES)
    found = [*split_calls(pauses), *split_calls(others, every)]
    return sorted(found, key=lambda record: record.end_ps)


def memory_levels(result: Result, lane: int = 0, *, every: bool = True) -> list[tuple[int, int]]:
    """Return (time in ps, bytes held from then on), from 0, in order.

    Bytes lost between buffers count all the time, as the compiler assigns addresses once, and
    bytes that the compiler saves count less (`Result.counted_bytes`). The highest level is the peak
    in either case of `every`.

    every: True for each repetition; False for the first and the last, with one change between.
    """
    program = result.program_of(lane)
    start = resident_bytes(program) + result.idle_bytes(lane)
    changes = change_blocks(split_changes(result.timeline.memory[lane].changes, every))
    taken = running_levels(changes, 0, every=every)
    return [(0, start), *((at, start + result.counted_bytes(lane, nbytes)) for at, nbytes in taken)]


def held_levels(result: Result, lane: int = 0) -> Iterator[tuple[int, str, int]]:
    """Yield time (ps), category and the bytes of it held from then on, in order of time.

    In every iteration; categories held all the time come first, at time 0. The sums over the
    categories are those of `memory_levels`, to a byte for each.
    """
    levels, taken = Counter[str](), Counter[str]()
    for alloc in result.program_of(lane).resident:
        levels[alloc.category] += whole_bytes(float(alloc.bytes))
    if idle := result.idle_bytes(lane):
        levels[FRAGMENTATION_LABEL] += idle
    yield from ((0, category, held) for category, held in levels.items())
    tree = change_blocks(split_changes(result.timeline.memory[lane].changes))
    for entry in unroll_blocks(tree, True):
        assert not isinstance(entry, HiddenRepetitions)
        shift, change = entry
        for category, nbytes in change.by_category:
            taken[category] += nbytes
            held = levels[category] + result.counted_bytes(lane, taken[category])
            yield change.time_ps + shift, category, held


def _slices(records: Sequence[Record], timeline: Timeline, every: bool) -> Iterator[TrackSlice]:
    trips = {(fold.repeats + 1, fold.period_ps): fold.trips for fold in timeline.stats.folds}
    for entry in unroll_blocks(record_blocks(records), every):
        if isinstance(entry, HiddenRepetitions):
            first, last = block_extent(entry.block.entries)
            repeats, period = entry.block.level
            start = last + entry.shift_ps
            end = first + entry.shift_ps + (repeats - 1) * period
            if start < end:
                yield TrackSlice(start, end, None, (repeats - 2) * trips[entry.block.level])
        else:
            shift, record = entry
            yield TrackSlice(record.start_ps + shift, record.end_ps + shift, record)


def _tracks(slices: Iterable[TrackSlice]) -> list[list[TrackSlice]]:
    """Return the slices on tracks, each on the first that is free when it starts."""
    tracks: list[list[TrackSlice]] = []
    for each in sorted(slices, key=lambda each: (each.start_ps, each.end_ps)):
        for track in tracks:
            if track[-1].end_ps <= each.start_ps:
                track.append(each)
                break
        else:
            tracks.append([each])
    return tracks
