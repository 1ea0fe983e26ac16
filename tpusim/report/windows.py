"""Which part of a step is worth a close look: one trip of each of its longest loops."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, TypeAlias

from tpusim.costs.tasks import CORE
from tpusim.engine import Record
from tpusim.partition.accumulate import MICROBATCHES
from tpusim.program import Call, Loop, Op, Pass, TopOp
from tpusim.report.slices import Slice
from tpusim.report.traffic import Load, between, loads
from tpusim.result import Result
from tpusim.stages import stage_uses
from tpusim.trips import LOOP_NAMES

LOOPS = 2
"""One layer forward and one backward, in the step of a model of one stack of layers."""

PASSES = {
    Pass.FORWARD: "forward pass of microbatch", Pass.BACKWARD: "backward pass of microbatch",
    Pass.WEIGHTS: "weight gradients of microbatch",
}  # fmt: skip
"""What titles call the slots of a pipeline, before the number of their microbatch."""

Records: TypeAlias = Mapping[str, Sequence[Record]]
"""What the core ran, by name."""


class Trip(NamedTuple):
    """A trip of a loop, from one time to another."""

    title: str
    start_ps: int
    end_ps: int


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

    Of a step in microbatches it is a trip in the last one. Of a stage of a pipeline, the fullest,
    it is one in the middle slot of each kind. A program without loops is shown whole.
    """
    by_name: dict[str, list[Record]] = {}
    for record in result.shown.tasks:
        if record.stream == CORE and record.duration_ps:
            by_name.setdefault(record.name, []).append(record)
    spans = [*_longest(result.program.body, by_name, LOOPS), *_in_slots(result, by_name)]
    spans = spans or [Trip("step", 0, result.shown.total_ps)]
    return tuple(_window(result, *span) for span in sorted(spans, key=lambda span: span.start_ps))


def _in_slots(result: Result, by_name: Records) -> Iterator[Trip]:
    """A trip of the longest loop in the middle slot of each kind of the fullest stage."""
    calls = {op.name: op.segment for op in result.program.body if isinstance(op, Call)}
    bodies = {segment.name: segment.body for segment in result.program.segments}
    ran = stage_uses(result)[result.lane].ran if calls else ()
    for kind in Pass:
        slots = [each for each in ran if each.slot.kind is kind]
        for slot, *within in slots[len(slots) // 2 :][:1]:
            trips = _longest(bodies[calls[str(slot)]], by_name, 1, (within[0], within[1]))
            yield from (
                trip._replace(title=f"{trip.title}, {PASSES[kind]} {slot.microbatch}")
                for trip in trips
            )


def _longest(
    body: Sequence[TopOp], by_name: Records, count: int, within: tuple[int, int] | None = None
) -> list[Trip]:
    """The middle trips of the longest outer loops of a body, of one run between two times."""
    found = [_trip(loop, by_name, within) for loop in _outer_loops(body)]
    longest = sorted((each for each in found if each), key=lambda each: -each[0])[:count]
    return [trip for _, trip in longest]


def _outer_loops(body: Sequence[TopOp]) -> Iterator[Loop]:
    """The loops of a body; instead of those over microbatches, those in them."""
    for op in body:
        if isinstance(op, Loop):
            over = op.name in (MICROBATCHES, *LOOP_NAMES.values())
            yield from _outer_loops(op.body) if over else (op,)


def _trip(loop: Loop, by_name: Records, within: tuple[int, int] | None) -> tuple[int, Trip] | None:
    """Length of the whole loop (ps), and the middle trip of its last run."""
    records = [record for name in _names(loop.body) for record in by_name.get(name, ())]
    if within is None:
        spans = [(record.start_ps, _end(record)) for record in records]
    else:
        spans = [(at, at + each.duration_ps) for each in records for at in between(each, *within)]
    if not spans:
        return None
    first, last = min(start for start, _ in spans), max(end for _, end in spans)
    title = f"{loop.name}: trip {loop.trips // 2 + 1} of {loop.trips}"
    return last - first, Trip(title, *_middle(loop, by_name, (first, last)))


def _middle(loop: Loop, by_name: Records, whole: tuple[int, int]) -> tuple[int, int]:
    """From the first task of the last run's middle trip to the same one of the next trip."""
    for op in loop.body:
        every = chain(*(record.starts() for record in by_name.get(op.name, ())))
        starts = sorted(start for start in every if whole[0] <= start < whole[1])
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
