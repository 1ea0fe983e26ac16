"""The core's time and the FLOPs of a plan beside those of a program, in parts."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from tpusim.base.phase import Phase
from tpusim.compiler_check.core_times import TimedOperation
from tpusim.compiler_check.step_names import EMBEDDING, StepNames
from tpusim.graph import CachedAttention, Convolution, Einsum
from tpusim.program import Collective, Compute, Single, walk_ops
from tpusim.results import COMPUTE_LABELS, Result

WORK, ATTENTION = "matmul and vector work", "attention kernels"
"""The names of work. Programs fuse norms, softmax and losses into matmuls, so matmul and vector
work are one."""

OTHERS = "all that is no matmul"
"""The name of element-wise groups, copies and casts, wherever they stand: of those that a program
fuses into a matmul, the matmul has the time."""

MOST_NAMED = 8
"""Operations of a program that are named for a part of its time: those that take longest."""

Operation: TypeAlias = Callable[[Single], str]
"""Returns the forward operation of the graph behind an operation; empty where it is not known."""


@dataclass(frozen=True, slots=True)
class ComparedPart:
    """A part of the step in the plan and in the program.

    what: a kind of work, the embedding, exposed communication by axes, an operation of the graph,
        or an item of memory.
    plan, program: seconds of a step, matrix FLOPs of all devices, or bytes of one at the peak.
    phase: of work; None for all of the step.
    parts: of work, the operations of the graph, those that differ most first.
    plan_operations, program_operations: of time, those of the two programs that take longest.
    """

    what: str
    plan: float
    program: float
    phase: Phase | None = None
    parts: tuple["ComparedPart", ...] = ()
    plan_operations: tuple[str, ...] = ()
    program_operations: tuple[str, ...] = ()

    @property
    def difference(self) -> float:
        """The plan's value less the program's."""
        return self.plan - self.program


class _CoreTime(NamedTuple):
    """Seconds of the core: what for, in which phase, the graph's operation, and the program's."""

    what: str
    phase: Phase | None
    name: str
    op: Single | None
    seconds: float


@dataclass(frozen=True, slots=True)
class ComparedSide:
    """One side of a comparison, and the operations of the graph that its own belong to."""

    result: Result
    times: tuple[TimedOperation, ...]
    operation: Operation
    names: StepNames

    def _cells(self) -> Iterator[tuple[Single | None, str, Phase, float]]:
        for timed in self.times:
            for (label, phase), seconds in timed.labels_s.items():
                yield timed.op, label, phase, seconds

    def work(self) -> Iterator[_CoreTime]:
        """Yield all of the core's time."""
        for op, label, phase, seconds in self._cells():
            if label not in COMPUTE_LABELS:
                yield _CoreTime(label, None, "", None, seconds)
                continue
            name = self.operation(op) if op is not None else ""
            if name in self.names.lookups and phase is not Phase.OPTIMIZER:
                yield _CoreTime(EMBEDDING, None, EMBEDDING, op, seconds)
                continue
            behind = None if phase is Phase.OPTIMIZER else self.names.operations.get(name)
            if label == "attention" or isinstance(behind, CachedAttention):
                yield _CoreTime(ATTENTION, phase, ATTENTION, op, seconds)
            else:
                known = isinstance(behind, Einsum | Convolution)
                yield _CoreTime(WORK, phase, name if known else OTHERS, op, seconds)

    def waits(self) -> Iterator[tuple[str, float]]:
        """Yield label and seconds of waits that are not for collectives, such as for the host."""
        for op, label, _, seconds in self._cells():
            if label not in COMPUTE_LABELS and not isinstance(op, Collective):
                yield label, seconds

    def flops(self) -> dict[Phase, float]:
        """Return the matrix FLOPs of each pass, of all devices together."""
        found = dict.fromkeys(Phase, 0.0)
        for program in self.result.programs:
            for op, times in walk_ops(program.body, program.segments):
                if isinstance(op, Compute):
                    found[op.phase] += float(op.flops.total) * times
        return found


def compared_times(plan: ComparedSide, program: ComparedSide) -> tuple[ComparedPart, ...]:
    """Return all of the core's time in parts, which sum to the step times: work by pass, exposed.

    The exposed time of the embedding is that of its axes.
    """
    rows: dict[tuple[str, Phase | None], tuple[list[_CoreTime], list[_CoreTime]]] = {}
    for at, side in enumerate((plan, program)):
        for row in side.work():
            rows.setdefault((row.what, row.phase), ([], []))[at].append(row)
    return tuple(sorted((_time(*key, sides) for key, sides in rows.items()), key=_order))


def _time(
    what: str, phase: Phase | None, sides: tuple[list[_CoreTime], list[_CoreTime]]
) -> ComparedPart:
    parts = _paired(*(_sums((row.name, row.seconds) for row in side) for side in sides))
    longest = (_sums((row.op.name, row.seconds) for row in side if row.op) for side in sides)
    named = (tuple(sorted(side, key=lambda n: -side[n])[:MOST_NAMED]) for side in longest)
    return ComparedPart(
        what,
        sum(part.plan for part in parts),
        sum(part.program for part in parts),
        phase,
        most_different(part for part in parts if part.what and (part.plan or part.program)),
        *named,
    )


def _order(row: ComparedPart) -> tuple[int, int, float]:
    kinds = (WORK, ATTENTION, EMBEDDING)
    kind = kinds.index(row.what) if row.what in kinds else len(kinds)
    phase = list(Phase).index(row.phase) if row.phase else 0
    return kind, phase, -max(row.plan, row.program)


def compared_waits(plan: ComparedSide, program: ComparedSide) -> list[ComparedPart]:
    """Return the waits that are not for collectives: for the host, for copies, for other slices."""
    return _paired(_sums(plan.waits()), _sums(program.waits()))


def compared_flops(plan: ComparedSide, program: ComparedSide) -> tuple[ComparedPart, ...]:
    """Return the matrix FLOPs of the passes that have any; they sum to all that are executed."""
    first, second = plan.flops(), program.flops()
    found = (ComparedPart("matrix FLOPs", first[each], second[each], each) for each in Phase)
    return tuple(row for row in found if row.plan or row.program)


def _sums(values: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the sum of the values of each name."""
    found: defaultdict[str, float] = defaultdict(float)
    for name, value in values:
        found[name] += value
    return found


def _paired(plan: Mapping[str, float], program: Mapping[str, float]) -> list[ComparedPart]:
    """Return the values of both sides by name."""
    names = dict.fromkeys((*plan, *program))
    return [ComparedPart(name, plan.get(name, 0.0), program.get(name, 0.0)) for name in names]


def most_different(parts: Iterable[ComparedPart]) -> tuple[ComparedPart, ...]:
    """Return parts in the order of their differences, the largest first."""
    return tuple(sorted(parts, key=lambda part: -abs(part.difference)))
