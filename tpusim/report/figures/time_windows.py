"""The parts of a step that deserve a close look: one iteration of each of its longest loops."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, TypeAlias

from tpusim.base.phase import Phase
from tpusim.costs import CORE, ON_HOST
from tpusim.engine import Record
from tpusim.frames import is_microbatches
from tpusim.program import Call, Loop, Op, PassKind, TopOp
from tpusim.report.link_traffic import LinkLoad, link_loads, starts_between
from tpusim.report.track_slices import TrackSlice
from tpusim.results import Result, is_pipeline_loop
from tpusim.results.stage_uses import stage_uses

LOOPS_SHOWN = 2
"""One layer forward and one backward, in the step of a model with one stack of layers."""

PASS_TITLES = {
    PassKind.FORWARD: "forward pass of microbatch",
    PassKind.BACKWARD: "backward pass of microbatch",
    PassKind.WEIGHTS: "weight gradients of microbatch",
}
"""The slots of a pipeline in titles, before the number of their microbatch."""

RecordsByName: TypeAlias = Mapping[str, Sequence[Record]]
"""The records of the core, by name."""


class LoopIteration(NamedTuple):
    """An iteration of a loop, from one time to another."""

    title: str
    start_ps: int
    end_ps: int


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """A part of the step: the work of the core and the load of the links.

    title: the iteration in words, such as `one layer, forward`, or `step`.
    core: without gaps from `start_ps` to `end_ps`.
    hosts: the work of each stage of the hosts' input pipeline that works then, in order.
    """

    title: str
    start_ps: int
    end_ps: int
    core: tuple[TrackSlice, ...]
    loads: tuple[LinkLoad, ...]
    hosts: Mapping[str, tuple[TrackSlice, ...]]


def timeline_data(result: Result) -> tuple[TimeWindow, ...]:
    """Return an iteration in the middle of each of the longest outer loops, in order of time.

    Of a step in microbatches it is an iteration in the last one; of the fullest stage of a
    pipeline, one in the middle slot of each kind. A program without loops is returned whole.
    """
    by_name: dict[str, list[Record]] = {}
    for record in result.shown.tasks:
        if record.stream == CORE and record.duration_ps:
            by_name.setdefault(record.name, []).append(record)
    spans = [
        *_longest_loops(result.program.body, by_name, LOOPS_SHOWN),
        *_in_slots(result, by_name),
    ]
    spans = spans or [LoopIteration("the step", 0, result.shown.total_ps)]
    return tuple(_window(result, *span) for span in sorted(spans, key=lambda span: span.start_ps))


def _in_slots(result: Result, by_name: RecordsByName) -> Iterator[LoopIteration]:
    """Yield an iteration of the longest loop in the middle slot of each kind, fullest stage.

    A slot without loops is yielded whole.
    """
    calls = {op.name: op.segment for op in result.program.body if isinstance(op, Call)}
    bodies = {segment.name: segment.body for segment in result.program.segments}
    timed = stage_uses(result)[result.lane].slots if calls else ()
    for kind in PassKind:
        slots = [each for each in timed if each.slot.kind is kind]
        for slot, *within in slots[len(slots) // 2 :][:1]:
            loops = _longest_loops(bodies[calls[str(slot)]], by_name, 1, (within[0], within[1]))
            where = f"{PASS_TITLES[kind]} {slot.microbatch}"
            if not loops:
                yield LoopIteration(where, within[0], within[1])
            for each in loops:
                yield each._replace(title=f"{each.title.partition(',')[0]}, {where}")


def _longest_loops(
    body: Sequence[TopOp], by_name: RecordsByName, count: int, within: tuple[int, int] | None = None
) -> list[LoopIteration]:
    """Return the middle iterations of a body's longest outer loops, in one run of the body."""
    found = [_timed_iteration(loop, by_name, within) for loop in outer_loops(body)]
    longest = sorted((each for each in found if each), key=lambda each: -each[0])[:count]
    return [iteration for _, iteration in longest]


def outer_loops(body: Sequence[TopOp]) -> Iterator[Loop]:
    """Yield the loops of a body; those over microbatches are replaced by the loops in them."""
    for op in body:
        if isinstance(op, Loop):
            over = is_microbatches(op.name) or is_pipeline_loop(op.name)
            yield from outer_loops(op.body) if over else (op,)


def _timed_iteration(
    loop: Loop, by_name: RecordsByName, within: tuple[int, int] | None
) -> tuple[int, LoopIteration] | None:
    """Return the length of the whole loop (ps) and the middle iteration of its last run."""
    records = [record for name in _names(loop.body) for record in by_name.get(name, ())]
    if within is None:
        spans = [(record.start_ps, _last_end(record)) for record in records]
    else:
        spans = [
            (start, start + record.duration_ps)
            for record in records
            for start in starts_between(record, *within)
        ]
    if not spans:
        return None
    first, last = min(start for start, _ in spans), max(end for _, end in spans)
    title = loop_words(loop.name, {record.phase for record in records})
    return last - first, LoopIteration(title, *_middle(loop, by_name, (first, last)))


def loop_words(name: str, phases: Collection[Phase]) -> str:
    """Return one iteration of a loop in words: its body, and the pass that it belongs to.

    name: of the loop; the one of a backward pass ends with `/d`, of weight gradients with `/d/w`.
    phases: of the operations in the loop.

    >>> loop_words("layers", {Phase.FORWARD}), loop_words("while.3", {Phase.BACKWARD})
    ('one layer, forward', 'one iteration of while.3, backward')
    """
    bare = re.sub(r"(/d)?(/w)?$", "", name)
    what = f"one {bare[:-1]}" if bare.endswith("layers") else f"one iteration of {bare}"
    order = sorted(phases, key=list(Phase).index)
    return f"{what}, {Phase.BACKWARD if Phase.BACKWARD in phases else order[0]}"


def _middle(loop: Loop, by_name: RecordsByName, whole: tuple[int, int]) -> tuple[int, int]:
    """Return the time from the first task of the last run's middle iteration to that of the next.

    whole: start and end of the loop.
    """
    for op in loop.body:
        every = chain(*(record.starts() for record in by_name.get(op.name, ())))
        starts = sorted(start for start in every if whole[0] <= start < whole[1])
        if starts:
            ends = [*starts[1:], whole[1]]
            middle = loop.trips // 2 - loop.trips
            return starts[middle], ends[middle]
    return whole


def _last_end(record: Record) -> int:
    """Return the end of the last repetition."""
    return record.end_ps + sum(level.last_ps for level in record.repeats)


def _names(body: tuple[Op, ...]) -> Iterator[str]:
    for op in body:
        if isinstance(op, Loop):
            yield from _names(op.body)
        else:
            yield op.name


def _window(result: Result, title: str, start_ps: int, end_ps: int) -> TimeWindow:
    timeline = result.shown
    core = [record for record in timeline.tasks if record.stream == CORE and record.duration_ps]
    hosts: dict[str, list[Record]] = {}
    for record in timeline.tasks:
        if record.stream.startswith(f"{ON_HOST} "):
            hosts.setdefault(record.stream, []).append(record)
    return TimeWindow(
        title,
        start_ps,
        end_ps,
        core=_slices((*core, *timeline.waits), start_ps, end_ps),
        loads=tuple(link_loads(result, start_ps, end_ps)),
        hosts={
            stage: slices
            for stage, of in hosts.items()
            if (slices := _slices(of, start_ps, end_ps))
        },
    )


def _slices(records: Sequence[Record], start_ps: int, end_ps: int) -> tuple[TrackSlice, ...]:
    """Return the parts of records between two times, in order."""
    slices = (
        TrackSlice(max(start, start_ps), min(start + record.duration_ps, end_ps), record)
        for record in records
        for start in starts_between(record, start_ps, end_ps)
    )
    return tuple(sorted(slices, key=lambda each: each.start_ps))
