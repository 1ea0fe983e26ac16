"""The iterations of a circular pipeline, which all stages run at the same times.

In iteration t stage s is at its (t - s)-th turn, and one turn is one microbatch through one chunk,
the microbatches in order through the first chunk, then through the next. The backward loop is the
forward one reversed. A model with layers of two kinds has a loop for each, one after the other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from typing import TypeAlias

from tpusim.base.phase import Phase
from tpusim.costs import CORE
from tpusim.engine import Record, Timeline
from tpusim.pipeline import CircularShape
from tpusim.pipeline.circular import BUBBLE_SUFFIX, PIPELINE, loop_name
from tpusim.plan import STAGE_AXES
from tpusim.program import Loop, PassKind, Program, Slot, walk_ops

TimeSpan: TypeAlias = tuple[int, int]
"""Start and end, in picoseconds."""

PHASES = {PassKind.FORWARD: Phase.FORWARD, PassKind.BACKWARD: Phase.BACKWARD}
"""The phase of each pass."""


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


@dataclass(frozen=True, slots=True)
class CircularRun:
    """The iterations of one loop in one pass, in order.

    first_chunk: the chunk of a stage in the first round.
    """

    kind: PassKind
    shape: CircularShape
    first_chunk: int
    iterations: tuple[CircularIteration, ...]

    def slot(self, iteration: int, stage: int) -> Slot | None:
        """Return the slot of a stage in an iteration; None if its result is never read.

        >>> shape = CircularShape(stages=2, microbatches=3, rounds=1)
        >>> runs = [CircularRun(kind, shape, 0, ()) for kind in PHASES]
        >>> [[str(run.slot(at, 1)) for at in range(4)] for run in runs]
        [['None', 'F0', 'F1', 'F2'], ['B2', 'B1', 'B0', 'None']]
        """
        shape, ahead = self.shape, self.kind is PassKind.FORWARD
        at = iteration if ahead else shape.turns + shape.stages - 2 - iteration
        chunk, microbatch = divmod(at - stage, shape.microbatches)
        known = 0 <= at - stage < shape.turns
        return Slot(self.kind, microbatch, self.first_chunk + chunk) if known else None


def is_pipeline_loop(name: str) -> bool:
    """Return True for a loop over iterations, but not for those whose result is never read.

    >>> [is_pipeline_loop(loop_name(1, Phase.FORWARD) + end) for end in ("", BUBBLE_SUFFIX)]
    [True, False]
    """
    start, _, phase = name.partition("/")
    return start.startswith(PIPELINE) and phase in PHASES.values()


def iterations_of(program: Program) -> tuple[int, int]:
    """Return the iterations of the forward loops whose result is never read, and all of them."""
    loops = {op.name: op.trips for op in program.body if isinstance(op, Loop)}
    names = [name for _, kind, name in _loop_names(program) if kind is PassKind.FORWARD]
    idle = sum(loops[name + BUBBLE_SUFFIX] for name in names)
    return idle, idle + sum(loops[name] for name in names)


def _loop_names(program: Program) -> Iterator[tuple[int, PassKind, str]]:
    """Yield the number, the pass and the name of each loop that a program has."""
    loops = {op.name for op in program.body if isinstance(op, Loop)}
    for number in count():
        found = [(kind, loop_name(number, phase)) for kind, phase in PHASES.items()]
        if found[0][1] not in loops:
            return
        yield from ((number, kind, name) for kind, name in found if name in loops)


def circular_runs(
    program: Program, timeline: Timeline, stages: int, microbatches: int
) -> tuple[CircularRun, ...]:
    """Return the runs of the loops; of each, the iterations whose result is never read are last."""
    loops = {op.name: op for op in program.body if isinstance(op, Loop)}
    by_name: dict[str, list[Record]] = {}
    for record in timeline.tasks:
        by_name.setdefault(record.name, []).append(record)
    waits = sorted(_permute_waits(timeline))
    chunks, runs = [0], []
    for number, kind, name in _loop_names(program):
        shape = CircularShape(stages, microbatches, rounds=loops[name].trips // microbatches)
        if number == len(chunks) - 1:
            chunks.append(chunks[-1] + shape.rounds)
        iterations = tuple(
            iteration
            for each in (name, name + BUBBLE_SUFFIX)
            if each in loops
            for iteration in _loop_iterations(loops[each], by_name, waits)
        )
        runs.append(CircularRun(kind, shape, chunks[number], iterations))
    return tuple(runs)


def unread_ps(
    program: Program, timeline: Timeline, stages: int, microbatches: int
) -> tuple[int, ...]:
    """Return the picoseconds of each stage in work whose result is never read."""
    lost = [0] * stages
    for run in circular_runs(program, timeline, stages, microbatches):
        for number, iteration in enumerate(run.iterations):
            begin, end = iteration.work
            for stage in range(stages):
                if run.slot(number, stage) is None:
                    lost[stage] += end - begin
    return tuple(lost)


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
