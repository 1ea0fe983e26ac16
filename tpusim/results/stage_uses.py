"""The stages of a pipeline: the layers, the timed slots and the memory of each."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from tpusim.engine import CallTimes, Record
from tpusim.pipeline import schedule_of
from tpusim.plan import CIRCULAR, STAGE_AXES, part_bounds
from tpusim.program import Call, PassKind, Program, Slot, walk_ops
from tpusim.results.circular_iterations import TimeSpan, circular_runs
from tpusim.results.plan_result import PlanResult, pipelined
from tpusim.results.result import BUBBLE_LABEL, Result, memory_held

PAUSES = (BUBBLE_LABEL, *STAGE_AXES)
"""Labels between the runs of a stage: waits for other stages, and for messages."""


class StageSlot(NamedTuple):
    """A slot of a stage, from one time to another."""

    slot: Slot
    start_ps: int
    end_ps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageUse:
    """One stage of a pipeline over the step. Times in picoseconds, bytes of one device.

    layers: of each of its parts of the model.
    besides: the rest of the model on the stage, in words.
    slots: in order of time.
    send_waits: waits of its core for messages in flight, or in a permute.
    other: the rest of the core's work, such as the optimizer.
    unread: computation in a circular pipeline whose result is never read.
    bubble_ps: length of `unread`, or of the waits for other stages.
    """

    stage: int
    layers: tuple[int, ...]
    besides: str
    slots: tuple[StageSlot, ...]
    send_waits: tuple[TimeSpan, ...]
    other: tuple[TimeSpan, ...]
    unread: tuple[TimeSpan, ...]
    bubble_ps: int
    hbm_peak_bytes: float

    @property
    def send_wait_ps(self) -> int:
        """The total length of `send_waits`."""
        return _length(self.send_waits)

    def mean_ps(self, kind: PassKind) -> float:
        """Return the mean length of the slots of a kind; 0 if there are none."""
        spans = [(each.start_ps, each.end_ps) for each in self.slots if each.slot.kind is kind]
        return _length(spans) / len(spans) if spans else 0.0


def stage_uses(result: Result) -> tuple[StageUse, ...]:
    """Return the stages of a result's pipeline, in order; none without a pipeline."""
    planned = pipelined(result)
    if planned is None:
        return ()
    circular = planned.plan.active_schedule == CIRCULAR
    return tuple(_circular_stages(planned) if circular else _called_stages(planned))


def _layers(result: PlanResult, stage: int) -> tuple[int, ...]:
    bounds = part_bounds(result.plan, result.model.layer_count, result.model.name)
    sizes = [last - first for first, last in pairwise(bounds)]
    return tuple(sizes[stage :: result.plan.stages])


def _joined_stages(result: PlanResult) -> Iterator[int]:
    """Yield the stages with operations between layers, such as an encoder's norm."""
    bounds = part_bounds(result.plan, result.model.layer_count, result.model.name)
    for layer in result.model.joints:
        part = max(number for number, first in enumerate(bounds) if first <= layer)
        yield part % result.plan.stages


def _length(spans: Iterable[TimeSpan]) -> int:
    return sum(end - start for start, end in spans)


def _called_stages(result: PlanResult) -> Iterator[StageUse]:
    """Yield the stages of programs that call segments."""
    schedule, last = schedule_of(result.plan), result.plan.stages - 1
    tasks = _by_lane(result.timeline.tasks, last + 1)
    waits = _by_lane(result.timeline.waits, last + 1)
    for stage, program in enumerate(result.programs):
        pauses = [wait for wait in waits[stage] if wait.label in PAUSES]
        runs = _runs(each for each in (*tasks[stage], *waits[stage]) if each.label not in PAUSES)
        slots, others = timed_slots(program, schedule.slots[stage], runs)
        joints = ((stage, "joint") for stage in _joined_stages(result))
        ends = ((0, "embedding"), *joints, (last, "final norm, head, loss"))
        yield StageUse(
            stage=stage,
            layers=_layers(result, stage),
            besides=" + ".join(what for at, what in ends if at == stage),
            slots=tuple(slots),
            send_waits=tuple(sorted(_spans(wait for wait in pauses if wait.label != BUBBLE_LABEL))),
            other=tuple(others),
            unread=(),
            bubble_ps=_length(_spans(wait for wait in pauses if wait.label == BUBBLE_LABEL)),
            hbm_peak_bytes=sum(
                memory_held(program, result.timeline, stage, result.hbm_bytes).values()
            ),
        )


def _by_lane(records: Iterable[Record], lanes: int) -> list[list[Record]]:
    found: list[list[Record]] = [[] for _ in range(lanes)]
    for record in records:
        found[record.lane].append(record)
    return found


def _spans(records: Iterable[Record]) -> Iterator[TimeSpan]:
    for record in records:
        yield from ((start, start + record.duration_ps) for start in record.starts())


class _PartRuns(NamedTuple):
    """All runs of one part of a lane: the start of each, their length, and their operations."""

    starts_ps: tuple[int, ...]
    length_ps: int
    names: frozenset[str]


def _runs(records: Iterable[Record]) -> list[_PartRuns]:
    """Return the parts that a lane runs, without messages and those that take no time."""
    parts: dict[CallTimes, list[Record]] = {}
    for record in records:
        match record.repeats:
            case (CallTimes() as calls, *_):
                parts.setdefault(calls, []).append(record)
    found = []
    for calls, each in parts.items():
        ends = (r.end_ps + sum(level.last_ps for level in r.repeats[1:]) for r in each)
        names = frozenset(record.name for record in each)
        found.append(_PartRuns(calls.starts_ps, max(ends) - calls.starts_ps[0], names))
    return [run for run in found if run.length_ps]


def timed_slots(
    program: Program, slots: Sequence[Slot], runs: Iterable[_PartRuns]
) -> tuple[list[StageSlot], list[TimeSpan]]:
    """Return the slots of a stage with their times, and the other runs, both in order of time."""
    known = {str(slot): slot for slot in slots}
    calls = [op for op in program.body if isinstance(op, Call) and op.name in known]
    called = {call.segment for call in calls}
    bodies = (segment.body for segment in program.segments if segment.name in called)
    names = {op.name for body in bodies for op, _ in walk_ops(body)}
    spans: dict[bool, list[TimeSpan]] = {True: [], False: []}
    for run in runs:
        spans[bool(run.names & names)] += ((at, at + run.length_ps) for at in run.starts_ps)
    timed = zip(calls, sorted(spans[True]), strict=True)
    return [StageSlot(known[call.name], *span) for call, span in timed], sorted(spans[False])


def _circular_stages(result: PlanResult) -> Iterator[StageUse]:
    """Yield the stages of a circular pipeline."""
    plan = result.plan
    runs = circular_runs(result.program, result.shown, plan.stages, plan.microbatches)
    end = result.timeline.total_ps
    every = [iteration for run in runs for iteration in run.iterations]
    waits = tuple(sorted(span for iteration in every for span in iteration.send_waits))
    beside = [span for iteration in every for span in iteration.other]
    within = sorted([*(iteration.work for iteration in every), *waits, *beside])
    between = pairwise([(0, 0), *within, (end, end)])
    other = tuple(sorted([*beside, *((a, b) for (_, a), (b, _) in between if a < b)]))
    for stage in range(plan.stages):
        slots, unread = list[StageSlot](), list[TimeSpan]()
        for run in runs:
            for number, iteration in enumerate(run.iterations):
                slot = run.slot(number, stage)
                if slot is None:
                    unread.append(iteration.work)
                else:
                    slots.append(StageSlot(slot, *iteration.work))
        yield StageUse(
            stage=stage,
            layers=_layers(result, stage),
            besides="a share of embedding, head, loss",
            slots=tuple(slots),
            send_waits=waits,
            other=other,
            unread=tuple(unread),
            bubble_ps=_length(unread),
            hbm_peak_bytes=result.hbm_peak_bytes,
        )
