"""How long the TPU compiler takes for a step, from the size of its program."""

from collections.abc import Iterable

from tpusim.program import Loop, Program, TopOp
from tpusim.results import PlanResult

FIXED_S = 50.0
PER_OPERATION_S = 0.22
SPREAD = (0.5, 2.0)
"""Seconds of one processor core (AMD EPYC, Zen 5), jax 0.10.2 and libtpu 0.0.42.1, and the range.

Fitted to the smallest squared logarithm of the error on 10 programs, compiled to code
(experiments/training_runs/compile_times.csv). Of the 14 others 13 are within a factor of
two, which is the range.
"""


def program_size(programs: Iterable[Program]) -> int:
    """Return the operations of the programs of a step: a loop's body once, however often it runs.

    The compiler, too, compiles the body of a scan once.
    """
    return sum(
        _count(program.body) + sum(_count(segment.body) for segment in program.segments)
        for program in programs
    )


def _count(body: Iterable[TopOp]) -> int:
    return sum(1 + (_count(op.body) if isinstance(op, Loop) else 0) for op in body)


def compile_seconds(result: PlanResult) -> float:
    """Return the seconds that the compiler takes for a plan's step, on one core of its host.

    A line in the size of the program: `FIXED_S + PER_OPERATION_S * operations`.
    """
    return FIXED_S + PER_OPERATION_S * program_size(result.programs)
