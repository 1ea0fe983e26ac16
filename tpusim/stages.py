"""What each stage of a pipeline has and does: its layers, its slots as they ran, its memory."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from tpusim.engine import Calls, Record
from tpusim.partition import CIRCULAR, part_bounds, schedule_of
from tpusim.partition.plan import STAGE_AXES
from tpusim.plan_result import PlanResult
from tpusim.program import Call, Pass, Program, Slot, counted
from tpusim.result import BUBBLE, Result, memory_held
from tpusim.trips import Span, slot_of, trips

PAUSES = (BUBBLE, *STAGE_AXES)
"""Labels of what is between the runs of a stage: waits for others, and for messages."""


class Ran(NamedTuple):
    """A slot of a stage, from one time to another."""

    slot: Slot
    start_ps: int
    end_ps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageUse:
    """One stage of a pipeline over the step. Times in picoseconds, bytes of one device.

    layers: of each of its parts of the model. besides: what else of the model it has.
    ran: its slots, in order. sent: when its core waits for messages on their way, or in a permute.
    other: what its core does besides, such as the optimizer. unread: where it computes what nobody
    reads, in a circular pipeline. bubble_ps: how long it does that, or waits for other stages.
    """

    stage: int
    layers: tuple[int, ...]
    besides: str
    ran: tuple[Ran, ...]
    sent: tuple[Span, ...]
    other: tuple[Span, ...]
    unread: tuple[Span, ...]
    bubble_ps: int
    hbm_peak_bytes: float

    @property
    def sent_ps(self) -> int:
        """How long its core waits for messages in all."""
        return _length(self.sent)

    def mean_ps(self, kind: Pass) -> float:
        """How long its slots of a kind take, on average; 0 where it has none."""
        spans = [(each.start_ps, each.end_ps) for each in self.ran if each.slot.kind is kind]
        return _length(spans) / len(spans) if spans else 0.0


def stage_uses(result: Result) -> tuple[StageUse, ...]:
    """The stages of a result's pipeline, in order; none where it has no pipeline."""
    piped = result.pipelined
    if piped is None:
        return ()
    use = _in_trips if piped.plan.pipeline == CIRCULAR else _in_calls
    return tuple(use(piped))


def _layers(result: PlanResult, stage: int) -> tuple[int, ...]:
    bounds = part_bounds(result.plan, result.model.layers, result.model.name)
    sizes = [last - first for first, last in pairwise(bounds)]
    return tuple(sizes[stage :: result.plan.stages])


def _length(spans: Iterable[Span]) -> int:
    return sum(end - start for start, end in spans)


def _in_calls(result: PlanResult) -> Iterator[StageUse]:
    """The stages of programs that call segments."""
    schedule, last = schedule_of(result.plan), result.plan.stages - 1
    tasks = _by_lane(result.timeline.tasks, last + 1)
    waits = _by_lane(result.timeline.waits, last + 1)
    for stage, program in enumerate(result.programs):
        pauses = [wait for wait in waits[stage] if wait.label in PAUSES]
        runs = _runs(each for each in (*tasks[stage], *waits[stage]) if each.label not in PAUSES)
        slots, others = slots_ran(program, schedule.slots[stage], runs)
        ends = ((0, "embedding"), (last, "final norm, head, loss"))
        yield StageUse(
            stage=stage, layers=_layers(result, stage),
            besides=" + ".join(what for at, what in ends if at == stage),
            ran=tuple(slots), other=tuple(others), unread=(),
            sent=tuple(sorted(_spans(wait for wait in pauses if wait.label != BUBBLE))),
            bubble_ps=_length(_spans(wait for wait in pauses if wait.label == BUBBLE)),
            hbm_peak_bytes=sum(memory_held(program, result.timeline, stage).values()),
        )  # fmt: skip


def _by_lane(records: Iterable[Record], lanes: int) -> list[list[Record]]:
    found: list[list[Record]] = [[] for _ in range(lanes)]
    for record in records:
        found[record.lane].append(record)
    return found


def _spans(records: Iterable[Record]) -> Iterator[Span]:
    for record in records:
        yield from ((start, start + record.duration_ps) for start in record.starts())


class _Run(NamedTuple):
    """All runs of one part of a lane: when each starts, how long each takes, its operations."""

    starts_ps: tuple[int, ...]
    length_ps: int
    names: frozenset[str]


def _runs(records: Iterable[Record]) -> list[_Run]:
    """The parts that a lane runs, those that take no time left out; messages are none."""
    parts: dict[Calls, list[Record]] = {}
    for record in records:
        match record.repeats:
            case (Calls() as calls, *_):
                parts.setdefault(calls, []).append(record)
    found = []
    for calls, each in parts.items():
        ends = (r.end_ps + sum(level.last_ps for level in r.repeats[1:]) for r in each)
        names = frozenset(record.name for record in each)
        found.append(_Run(calls.starts_ps, max(ends) - calls.starts_ps[0], names))
    return [run for run in found if run.length_ps]


def slots_ran(
    program: Program, slots: Sequence[Slot], runs: Iterable[_Run]
) -> tuple[list[Ran], list[Span]]:
    """The slots of a stage as they ran, and what else ran, each in order of time."""
    known = {str(slot): slot for slot in slots}
    calls = [op for op in program.body if isinstance(op, Call) and op.name in known]
    called = {call.segment for call in calls}
    bodies = (segment.body for segment in program.segments if segment.name in called)
    names = {op.name for body in bodies for op, _ in counted(body)}
    spans: dict[bool, list[Span]] = {True: [], False: []}
    for run in runs:
        spans[bool(run.names & names)] += ((at, at + run.length_ps) for at in run.starts_ps)
    ran = zip(calls, sorted(spans[True]), strict=True)
    return [Ran(known[call.name], *span) for call, span in ran], sorted(spans[False])


def _in_trips(result: PlanResult) -> Iterator[StageUse]:
    """The stages of a circular pipeline."""
    made, end = trips(result.program, result.timeline), result.timeline.total_ps
    every = [trip for each in made.values() for trip in each]
    sent = tuple(sorted(span for trip in every for span in trip.sent))
    beside = [span for trip in every for span in trip.other]
    within = sorted([*(trip.work for trip in every), *sent, *beside])
    between = pairwise([(0, 0), *within, (end, end)])
    other = tuple(sorted([*beside, *((a, b) for (_, a), (b, _) in between if a < b)]))
    for stage in range(result.plan.stages):
        ran, unread = list[Ran](), list[Span]()
        for kind, each in made.items():
            for number, trip in enumerate(each):
                slot = slot_of(kind, number, stage, result.plan)
                if slot is None:
                    unread.append(trip.work)
                else:
                    ran.append(Ran(slot, *trip.work))
        yield StageUse(
            stage=stage, layers=_layers(result, stage), besides="a share of embedding, head, loss",
            ran=tuple(ran), sent=sent, other=other, unread=tuple(unread),
            bubble_ps=_length(unread), hbm_peak_bytes=result.hbm_peak_bytes,
        )  # fmt: skip
