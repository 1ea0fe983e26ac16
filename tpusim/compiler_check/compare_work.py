"""The core's time and the FLOPs of a plan beside those of a program, by pass and kind of work."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from tpusim.base.phase import Phase
from tpusim.compiler_check.core_times import CoreTimes
from tpusim.compiler_check.step_names import EMBEDDING
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


_Seconds: TypeAlias = defaultdict[str, float]
"""Seconds by name."""


@dataclass(frozen=True, slots=True)
class ComparedOperation:
    """A matmul of the graph, or all others, and its seconds in the plan and in the program."""

    name: str
    plan_s: float
    program_s: float


@dataclass(frozen=True, slots=True)
class ComparedTime:
    """A part of the core's time in the plan and in the program, in seconds of a step.

    what: `matmul and vector`, `attention kernels`, `embedding`, or exposed communication by axes.
    phase: of work; None for all of the step.
    operations: of the graph, those that differ most first; empty for exposed communication.
    plan_operations, program_operations: those of the two programs that take longest.
    """

    what: str
    phase: Phase | None
    plan_s: float
    program_s: float
    operations: tuple[ComparedOperation, ...] = ()
    plan_operations: tuple[str, ...] = ()
    program_operations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ComparedFlops:
    """Matrix FLOPs of a pass, of all devices together, whatever they are for."""

    phase: Phase
    plan: float
    program: float


@dataclass(frozen=True, slots=True)
class ComparedSide:
    """The core's times of one side, and what its operations belong to.

    lookups: names of the graph's operations and tensors that are the embedding.
    products: names of the graph's matmuls.
    """

    times: CoreTimes
    operation: Operation
    lookups: frozenset[str]
    products: frozenset[str]

    def parts(self) -> Iterator[tuple[str, Phase | None, str, Single | None, float]]:
        """Yield what, phase, operation of the graph, operation and seconds of the core's time."""
        for op, label, phase, seconds in self.times.cells():
            if label not in COMPUTE_LABELS:
                yield label, None, "", None, seconds
                continue
            name = self.operation(op) if op is not None else ""
            if name in self.lookups and phase is not Phase.OPTIMIZER:
                yield EMBEDDING, None, EMBEDDING, op, seconds
            elif label == "attention":
                yield ATTENTION, phase, ATTENTION, op, seconds
            else:
                known = name in self.products and phase is not Phase.OPTIMIZER
                yield WORK, phase, name if known else OTHERS, op, seconds

    def unmoved(self) -> Iterator[tuple[str, float]]:
        """Yield label and seconds of waits that are not for collectives, such as for the host."""
        for op, label, _, seconds in self.times.cells():
            if label not in COMPUTE_LABELS and not isinstance(op, Collective):
                yield label, seconds


def compared_times(plan: ComparedSide, program: ComparedSide) -> tuple[ComparedTime, ...]:
    """Return all of the core's time in parts, which sum to the step times: work by pass, exposed.

    The exposed time of the embedding is that of its axes.
    """
    cells: dict[tuple[str, Phase | None], dict[str, list[float]]] = {}
    longest: dict[tuple[str, Phase | None], tuple[_Seconds, _Seconds]] = {}
    for side, each in enumerate((plan, program)):
        for what, phase, name, op, seconds in each.parts():
            pair = cells.setdefault((what, phase), {}).setdefault(name, [0.0, 0.0])
            pair[side] += seconds
            named = longest.setdefault((what, phase), (defaultdict(float), defaultdict(float)))
            if op is not None:
                named[side][op.name] += seconds
    rows = (_time(*part, parts, longest[part]) for part, parts in cells.items())
    return tuple(sorted(rows, key=_order))


def compared_waits(plan: ComparedSide, program: ComparedSide) -> tuple[ComparedTime, ...]:
    """Return the waits that are not for collectives: for the host, for copies, for other slices."""
    cells: dict[str, list[float]] = {}
    for side, each in enumerate((plan, program)):
        for label, seconds in each.unmoved():
            cells.setdefault(label, [0.0, 0.0])[side] += seconds
    return tuple(ComparedTime(label, None, pair[0], pair[1]) for label, pair in cells.items())


def _time(
    what: str,
    phase: Phase | None,
    parts: dict[str, list[float]],
    longest: tuple[_Seconds, _Seconds],
) -> ComparedTime:
    sums = [sum(pair[side] for pair in parts.values()) for side in (0, 1)]
    named = ((name, pair) for name, pair in parts.items() if name and any(pair))
    found = (ComparedOperation(name, pair[0], pair[1]) for name, pair in named)
    ranked = sorted(found, key=lambda each: -abs(each.plan_s - each.program_s))
    plan, program = (tuple(sorted(side, key=lambda n: -side[n])[:MOST_NAMED]) for side in longest)
    return ComparedTime(what, phase, sums[0], sums[1], tuple(ranked), plan, program)


def _order(row: ComparedTime) -> tuple[int, int, float]:
    kinds = (WORK, ATTENTION, EMBEDDING)
    kind = kinds.index(row.what) if row.what in kinds else len(kinds)
    phase = list(Phase).index(row.phase) if row.phase else 0
    return kind, phase, -max(row.plan_s, row.program_s)


def compared_flops(plan: Result, program: Result) -> tuple[ComparedFlops, ...]:
    """Return the matrix FLOPs of the passes that have any; they sum to all that are executed."""
    sides = [_flops(side) for side in (plan, program)]
    return tuple(
        ComparedFlops(phase, sides[0][phase], sides[1][phase])
        for phase in Phase
        if sides[0][phase] or sides[1][phase]
    )


def _flops(result: Result) -> dict[Phase, float]:
    found = dict.fromkeys(Phase, 0.0)
    for program in result.programs:
        for op, times in walk_ops(program.body, program.segments):
            if isinstance(op, Compute):
                found[op.phase] += float(op.flops.total) * times
    return found
