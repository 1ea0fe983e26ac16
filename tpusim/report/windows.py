"""Which part of a step is worth a close look: one trip of each of its longest loops."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from tpusim.costs.tasks import CORE
from tpusim.engine import Record
from tpusim.partition.accumulate import MICROBATCHES
from tpusim.program import Loop, Op, TopOp
from tpusim.report.slices import Slice
from tpusim.report.traffic import Load, between, loads
from tpusim.result import Result

LOOPS = 2
"""One layer forward and one backward, in the step of a model of one stack of layers."""


@dataclass(frozen=True, slots=True)
class Window:
    """Part of the step: what the core does in it, and what the links carry.

    title: the loop and the trip, or `step`. core: without gap from `start_ps` to `end_ps`.
    """

    title: str
    start_ps: int
    end_ps: int
    core: tuple[Slice, ...]
    loads: tuple[Load, ...]


def timeline_data(result: Result) -> tuple[Window, ...]:
    """A trip in the middle of each of the longest outer loops, in order of time.

    Of a step in microbatches it is a trip in the last one. A program without loops is shown whole.
    """
    by_name: dict[str, list[Record]] = {}
    for record in result.shown.tasks:
        if record.stream == CORE and record.duration_ps:
            by_name.setdefault(record.name, []).append(record)
    found = [_trip(op, by_name) for op in _outer_loops(result.program.body)]
    longest = sorted((trip for trip in found if trip), key=lambda trip: -trip[0])[:LOOPS]
    spans = [trip[1:] for trip in longest] or [("step", 0, result.shown.total_ps)]
    return tuple(_window(result, *span) for span in sorted(spans, key=lambda span: span[1]))


def _outer_loops(body: tuple[TopOp, ...]) -> Iterator[Loop]:
    """The loops of a body; instead of the one over microbatches, those in it."""
    for op in body:
        if isinstance(op, Loop):
            yield from _outer_loops(op.body) if op.name == MICROBATCHES else (op,)


def _trip(loop: Loop, by_name: dict[str, list[Record]]) -> tuple[int, str, int, int] | None:
    """Length of the whole loop (ps), and title, start and end of its middle trip."""
    records = [record for name in _names(loop.body) for record in by_name.get(name, ())]
    if not records:
        return None
    first, last = min(r.start_ps for r in records), max(_end(r) for r in records)
    title = f"{loop.name}: trip {loop.trips // 2 + 1} of {loop.trips}"
    start, end = _middle(loop, by_name, (first, last))
    return last - first, title, start, end


def _middle(
    loop: Loop, by_name: dict[str, list[Record]], whole: tuple[int, int]
) -> tuple[int, int]:
    """From the first task of the last run's middle trip to the same one of the next trip."""
    for op in loop.body:
        starts = sorted(chain(*(record.starts() for record in by_name.get(op.name, ()))))
        if starts:
            ends = [*starts[1:], whole[1]]
            middle = loop.trips // 2 - loop.trips
            return starts[middle], ends[middle]
    return whole


def _end(record: Record) -> int:
    """When the last repetition ended."""
    return record.end_ps + sum(level.last_ps for level in record.repeats)


def _names(body: tuple[Op, ...]) -> Iterator[str]:
    for op in body:
        if isinstance(op, Loop):
            yield from _names(op.body)
        else:
            yield op.name


def _window(result: Result, title: str, start_ps: int, end_ps: int) -> Window:
    timeline = result.shown
    ran = (record for record in timeline.tasks if record.stream == CORE and record.duration_ps)
    core = (
        Slice(max(start, start_ps), min(start + record.duration_ps, end_ps), record)
        for record in chain(ran, timeline.waits)
        for start in between(record, start_ps, end_ps)
    )
    return Window(
        title=title,
        start_ps=start_ps,
        end_ps=end_ps,
        core=tuple(sorted(core, key=lambda each: each.start_ps)),
        loads=tuple(loads(result, start_ps, end_ps)),
    )
