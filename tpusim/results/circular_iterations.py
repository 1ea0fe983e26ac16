"""The iterations of a circular pipeline, which all stages run at the same times.

In iteration t stage s is at its (t - s)-th turn, and one turn is one microbatch through one chunk,
the microbatches in order through the first chunk, then through the next. The backward loop is the
forward one reversed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from tpusim.base.phase import Phase
from tpusim.costs import CORE
from tpusim.engine import Record, Timeline
from tpusim.pipeline.circular import BUBBLE_SUFFIX, PIPELINE
from tpusim.plan import STAGE_AXES, Plan
from tpusim.program import Loop, PassKind, Program, Slot, walk_ops

TimeSpan: TypeAlias = tuple[int, int]
"""Start and end, in picoseconds."""

LOOP_NAMES = {
    PassKind.FORWARD: f"{PIPELINE}/{Phase.FORWARD}",
    PassKind.BACKWARD: f"{PIPELINE}/{Phase.BACKWARD}",
}
"""The loops over iterations, without those whose result is never read."""


@dataclass(frozen=True, slots=True)
class CircularIteration:
    """One iteration of a loop (ps), the same on all stages.

    work: the longest span without a wait for a permute, which is the chunk's work.
    send_waits: the waits for a permute.
    other: the work of the core before and after, with what is passed on.
    """

    work: TimeSpan
    send_waits: tuple[TimeSpan, ...]
    other: tuple[TimeSpan, ...]


def circular_iterations(
    program: Program, timeline: Timeline
) -> dict[PassKind, tuple[CircularIteration, ...]]:
    """Return the iterations of the forward and the backward loop, those never read last."""
    loops = {op.name: op for op in program.body if isinstance(op, Loop)}
    by_name: dict[str, list[Record]] = {}
    for record in timeline.tasks:
        by_name.setdefault(record.name, []).append(record)
    waits = sorted(_permute_waits(timeline))
    return {
        kind: tuple(
            iteration
            for each in (name, name + BUBBLE_SUFFIX)
            if each in loops
            for iteration in _loop_iterations(loops[each], by_name, waits)
        )
        for kind, name in LOOP_NAMES.items()
    }


def _permute_waits(timeline: Timeline) -> Iterator[TimeSpan]:
    """Yield the spans in which the core waits for a permute over stages, or carries one out."""
    on_core = (record for record in timeline.tasks if record.stream == CORE)
    for record in (*on_core, *timeline.waits):
        if not {*STAGE_AXES}.isdisjoint(record.label.split("+")):
            yield from ((start, start + record.duration_ps) for start in record.starts())


def _loop_iterations(
    loop: Loop, by_name: dict[str, list[Record]], waits: Sequence[TimeSpan]
) -> Iterator[CircularIteration]:
    """Yield the iterations of a loop; each ends with its last operation."""
    names = {op.name for op, _ in walk_ops(loop.body)}
    begin = min(record.start_ps for name in names for record in by_name.get(name, ()))
    last = by_name[loop.body[-1].name]
    for end in sorted(start + record.duration_ps for record in last for start in record.starts()):
        yield _split(begin, end, [wait for wait in waits if begin <= wait[0] and wait[1] <= end])
        begin = end


def _split(begin: int, end: int, waits: Sequence[TimeSpan]) -> CircularIteration:
    edges = [(begin, begin), *waits, (end, end)]
    pieces = [(done, start) for (_, done), (start, _) in pairwise(edges) if done < start]
    work = max(pieces, key=lambda piece: piece[1] - piece[0])
    return CircularIteration(work, tuple(waits), tuple(piece for piece in pieces if piece != work))


def slot_of(kind: PassKind, iteration: int, stage: int, plan: Plan) -> Slot | None:
    """Return the slot of a stage in an iteration; None if its result is never read.

    >>> plan = Plan(mesh={"stage": 2}, seq_len=1, global_batch=3, microbatches=3)
    >>> [str(slot_of(PassKind.FORWARD, at, 1, plan)) for at in range(4)]
    ['None', 'F0', 'F1', 'F2']
    >>> [str(slot_of(PassKind.BACKWARD, at, 1, plan)) for at in range(4)]
    ['B2', 'B1', 'B0', 'None']
    """
    turns = plan.microbatches * plan.pipeline.virtual_stages
    at = iteration if kind is PassKind.FORWARD else turns + plan.stages - 2 - iteration
    chunk, microbatch = divmod(at - stage, plan.microbatches)
    return Slot(kind, microbatch, chunk) if 0 <= at - stage < turns else None
