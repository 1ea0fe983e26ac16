"""When each stage of a circular pipeline works on which microbatch: all make their trips at once.

On trip t stage s is at its (t - s)-th turn, and one turn is one microbatch through one chunk, the
microbatches in order through the first chunk, then through the next. The backward loop is the
forward one run backwards.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tpusim.costs.tasks import CORE
from tpusim.engine import Record, Timeline
from tpusim.partition.circular import BUBBLE, PIPELINE
from tpusim.partition.plan import STAGE_AXES, Plan
from tpusim.phase import Phase
from tpusim.program import Loop, Pass, Program, Slot, counted

LOOP_NAMES = {
    Pass.FORWARD: f"{PIPELINE}/{Phase.FORWARD}", Pass.BACKWARD: f"{PIPELINE}/{Phase.BACKWARD}",
}  # fmt: skip
"""The loops over trips, without those that nobody needs."""


@dataclass(frozen=True, slots=True)
class Trip:
    """One trip of a loop (ps): work from its start, then the permute, alike on all stages."""

    start_ps: int
    sends_ps: int
    end_ps: int


def trips(program: Program, timeline: Timeline) -> dict[Pass, tuple[Trip, ...]]:
    """The trips of the forward and of the backward loop, those that nobody needs last."""
    loops = {op.name: op for op in program.body if isinstance(op, Loop)}
    by_name: dict[str, list[Record]] = {}
    for record in timeline.tasks:
        by_name.setdefault(record.name, []).append(record)
    return {
        kind: tuple(
            trip
            for each in (name, name + BUBBLE) if each in loops
            for trip in _trips(loops[each], by_name)
        )
        for kind, name in LOOP_NAMES.items()
    }  # fmt: skip


def _trips(loop: Loop, by_name: dict[str, list[Record]]) -> Iterator[Trip]:
    """Each trip is over when its last operation is, a permute that the core waits in."""
    names = {op.name for op, _ in counted(loop.body)}
    records = [record for name in names for record in by_name.get(name, ())]
    permutes = [r for r in records if r.stream == CORE and set(r.label.split("+")) & {*STAGE_AXES}]
    last = next(record for record in permutes if record.name == loop.body[-1].name)
    begin = min(record.start_ps for record in records)
    sends = sorted({start for record in permutes for start in record.starts()})
    ends = sorted(start + last.duration_ps for record in by_name[last.name]
                  for start in record.starts())  # fmt: skip
    for end in ends:
        yield Trip(begin, next(start for start in sends if begin <= start < end), end)
        begin = end


def slot_of(kind: Pass, trip: int, stage: int, plan: Plan) -> Slot | None:
    """What a stage works on in a trip; None where nobody reads it.

    >>> plan = Plan(mesh={"stage": 2}, seq_len=1, global_batch=3, microbatches=3)
    >>> [str(slot_of(Pass.FORWARD, trip, 1, plan)) for trip in range(4)]
    ['None', 'F0', 'F1', 'F2']
    >>> [str(slot_of(Pass.BACKWARD, trip, 1, plan)) for trip in range(4)]
    ['B2', 'B1', 'B0', 'None']
    """
    turns = plan.microbatches * plan.virtual_stages
    at = trip if kind is Pass.FORWARD else turns + plan.stages - 2 - trip
    chunk, microbatch = divmod(at - stage, plan.microbatches)
    return Slot(kind, microbatch, chunk) if 0 <= at - stage < turns else None
