"""How long the TPU compiler takes for a step, from the size of its program."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import log10

from tpusim.frames import is_microbatches
from tpusim.hardware import Chip
from tpusim.program import CombinedWork, ConvolutionWork, Loop, MatmulWork, Program, TopOp, Work
from tpusim.results import PlanResult, is_pipeline_loop

FIXED_S = 21.6
OPERATION_S = 0.044
DECADE_S = 0.88
"""Seconds of one processor core (AMD EPYC, Zen 5) for v2, v3 and v4, jax 0.10.2, libtpu 0.0.42.1:
of any program, of each operation, and of each decade of FLOPs of each shape."""

SPREAD = (0.5, 2.0)
"""The range of a compile time, over its prediction."""

LEAST_FLOPS = 8.0
"""The decade from which the compiler's search for tiles of a matmul takes noticeable time."""


@dataclass(frozen=True, slots=True)
class ProgramSize:
    """What the compile time of a program follows from.

    operations: of the program as it is written: a loop's body once, layers without a loop each.
    decades: the sum, over the different shapes of matmuls and convolutions, of the decades of their
        FLOPs above `LEAST_FLOPS`.
    """

    operations: int
    decades: float


def program_size(programs: Iterable[Program], *, scanned: bool = True) -> ProgramSize:
    """Return the size of the programs of a step.

    scanned: layers are a loop of the program; False where each is written out.
    """
    operations = 0
    shapes: dict[tuple[object, ...], float] = {}
    for program in programs:
        for body in (program.body, *(segment.body for segment in program.segments)):
            operations += _count(body, scanned)
            shapes.update((_shape(work), work_flops(work)) for work in _heavy(body))
    decades = sum(max(log10(max(flops, 1.0)) - LEAST_FLOPS, 0.0) for flops in shapes.values())
    return ProgramSize(operations, decades)


def _count(body: Iterable[TopOp], scanned: bool) -> int:
    """Return the operations of a body as written."""
    return sum(
        1 + _count(op.body, scanned) * (1 if scanned or _stays_a_loop(op) else op.trips)
        if isinstance(op, Loop)
        else 1
        for op in body
    )


def _stays_a_loop(loop: Loop) -> bool:
    """True for loops that are none over layers."""
    return is_microbatches(loop.name) or is_pipeline_loop(loop.name)


def _heavy(body: Iterable[TopOp]) -> Iterator[MatmulWork | ConvolutionWork]:
    """Yield the matmuls and convolutions of a body, once each."""
    for op in body:
        if isinstance(op, Loop):
            yield from _heavy(op.body)
        else:
            yield from _heavy_parts(getattr(op, "work", None))


def _heavy_parts(work: Work | None) -> Iterator[MatmulWork | ConvolutionWork]:
    for part in work.parts if isinstance(work, CombinedWork) else (work,):
        if isinstance(part, MatmulWork | ConvolutionWork):
            yield part


def _shape(work: MatmulWork | ConvolutionWork) -> tuple[object, ...]:
    """Return what two operations share whose tiles are the same."""
    if isinstance(work, MatmulWork):
        return work.batch, work.m, work.k, work.n
    channels = (work.in_channels, work.out_channels)
    return work.batch, work.positions, work.taps, *channels, work.gradient


def work_flops(work: MatmulWork | ConvolutionWork) -> float:
    """Return the FLOPs of a matmul or of a convolution."""
    if isinstance(work, MatmulWork):
        return 2.0 * float(work.batch) * float(work.m) * float(work.k) * float(work.n)
    return float(work.flops)


def seconds_of_size(size: ProgramSize, chip: Chip) -> float:
    """Return the seconds of a program: `(fixed + each operations + decade decades) slower`.

    How much slower the compiler is than for v4 is in the chip's file (`compile_time`).
    """
    once = FIXED_S + OPERATION_S * size.operations + DECADE_S * size.decades
    return once * chip.compiler_rules.compile_time


def compile_seconds(result: PlanResult) -> float:
    """Return the seconds that the compiler takes for a plan's step, on one core of its host.

    What takes time beside the passes over all operations is the search for the tiles of each
    matmul and convolution, whose choices grow with the logarithm of its dimensions, and which is
    not repeated for a shape that was met before. The constants are fitted to the smallest squared
    logarithm of the error on 30 programs that were compiled to code
    (experiments/training_runs/compile_times.csv); another 30 judge them.
    """
    size = program_size(result.programs, scanned=result.plan.remat.scan_layers)
    return seconds_of_size(size, result.pod.chip)
