"""When each stage of a circular pipeline works on which microbatch: all make their trips at once.

On trip t stage s is at its (t - s)-th turn, and one turn is one microbatch through one chunk, the
microbatches in order through the first chunk, then through the next. The backward loop is the
forward one run backwards.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from tpusim.costs.tasks import CORE
from tpusim.engine import Record, Timeline
from tpusim.partition.circular import BUBBLE, PIPELINE
from tpusim.partition.plan import STAGE_AXES, Plan
from tpusim.phase import Phase
from tpusim.program import Loop, Pass, Program, Slot, counted

Span: TypeAlias = tuple[int, int]
"""Start and end, in picoseconds."""

LOOP_NAMES = {
    Pass.FORWARD: f"{PIPELINE}/{Phase.FORWARD}", Pass.BACKWARD: f"{PIPELINE}/{Phase.BACKWARD}",
}  # fmt: skip
"""The loops over trips, without those that nobody needs."""


@dataclass(frozen=True, slots=True)
class Trip:
    """One trip of a loop (ps), alike on all stages.

    work: the longest span in which the core does not wait for a permute, which is the chunk's.
    sent: when it waits for one. other: what it does before and after, with what is passed on.
    """

    work: Span
    sent: tuple[Span, ...]
    other: tuple[Span, ...]


def trips(program: Program, timeline: Timeline) -> dict[Pass, tuple[Trip, ...]]:
    """The trips of the forward and of the backward loop, those that nobody needs last."""
    loops = {op.name: op for op in program.body if isinstance(op, Loop)}
    by_name: dict[str, list[Record]] = {}
    for record in timeline.tasks:
        by_name.setdefault(record.name, []).append(record)
    waits = sorted(_waits(timeline))
    return {
        kind: tuple(
            trip
            for each in (name, name + BUBBLE) if each in loops
            for trip in _trips(loops[each], by_name, waits)
        )
        for kind, name in LOOP_NAMES.items()
    }  # fmt: skip


def _waits(timeline: Timeline) -> Iterator[Span]:
    """When the core waits for a permute over stages, or makes one that it waits in."""
    on_core = (record for record in timeline.tasks if record.stream == CORE)
    for record in (*on_core, *timeline.waits):
        if not {*STAGE_AXES}.isdisjoint(record.label.split("+")):
            yield from ((start, start + record.duration_ps) for start in record.starts())


def _trips(loop: Loop, by_name: dict[str, list[Record]], waits: Sequence[Span]) -> Iterator[Trip]:
    """Each trip is over when its last operation is."""
    names = {op.name for op, _ in counted(loop.body)}
    begin = min(record.start_ps for name in names for record in by_name.get(name, ()))
    ends = sorted(start + record.duration_ps for record in by_name[loop.body[-1].name]
                  for start in record.starts())  # fmt: skip
    for end in ends:
        yield _trip(begin, end, [wait for wait in waits if begin <= wait[0] and wait[1] <= end])
        begin = end


def _trip(begin: int, end: int, sent: Sequence[Span]) -> Trip:
    edges = [(begin, begin), *sent, (end, end)]
    pieces = [(done, start) for (_, done), (start, _) in pairwise(edges) if done < start]
    work = max(pieces, key=lambda piece: piece[1] - piece[0])
    return Trip(work, tuple(sent), tuple(piece for piece in pieces if piece != work))


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
