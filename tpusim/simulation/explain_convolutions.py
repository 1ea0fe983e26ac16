"""What convolutions cost on a device, and what other shapes of them would."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tpusim.base.errors import PlanError
from tpusim.base.text_table import wrapped_table
from tpusim.base.text_width import wrapped
from tpusim.base.units import format_seconds
from tpusim.costs import convolution_seconds, fastest_way, is_depthwise, useful_share
from tpusim.hardware import Device
from tpusim.program import Compute, ConvolutionWork, MatmulWork, rearrangements, walk_ops
from tpusim.results import Result


@dataclass(frozen=True, slots=True)
class Rearrangement:
    """Another shape of a convolution, and its seconds; those of the copies are not in it."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionRow:
    """A convolution on a device.

    matmul: the passes of the array, or None if the vector unit computes it.
    useful: share of the array's multiplications that are not with padding.
    flops: of all taps.
    """

    name: str
    matmul: MatmulWork | None
    useful: float
    flops: float
    seconds: float
    rearranged: tuple[Rearrangement, ...]

    def __str__(self) -> str:
        lines = [f"{self.name}  {format_seconds(self.seconds)}, {self._rate()}", *self._core()]
        rows = [
            (
                each.name,
                format_seconds(self.seconds),
                format_seconds(each.seconds),
                f"{each.seconds / self.seconds - 1:+.0%}",
            )
            for each in self.rearranged
        ]
        heads = ("rearranged", "before", "after", "change")
        table = wrapped_table([heads, *rows], left=1) if rows else ["  nothing to rearrange"]
        return "\n".join([*lines, *table])

    def _rate(self) -> str:
        return f"{self.flops / self.seconds / 1e12:.4g} TFLOP/s"

    def _core(self) -> list[str]:
        if self.matmul is None:
            return ["  depthwise: on the vector unit, without the array"]
        passes, m, k, n = (f"{size:,.0f}" for size in _sizes(self.matmul))
        return wrapped(
            f"implicit matmul: {passes} x [{m}, {k}] by [{k}, {n}]; padding wastes "
            f"{1 - self.useful:.0%} of the array",
            "  ",
            "    ",
        )


@dataclass(frozen=True, slots=True)
class ConvolutionTable:
    """Convolutions on a device, in the order in which they are given."""

    device: str
    rows: tuple[ConvolutionRow, ...]

    def __str__(self) -> str:
        total = format_seconds(sum(row.seconds for row in self.rows))
        count = f"{len(self.rows)} on {self.device}" + (f", {total}" if len(self.rows) > 1 else "")
        return "\n".join([f"convolutions {count}", *map(str, self.rows)])


def explain_convolutions(
    works: Iterable[tuple[str, ConvolutionWork]], device: Device
) -> ConvolutionTable:
    """Return what each named convolution costs on a device, and what other shapes of it would.

    Raise PlanError if the device has no matrix rate for a dtype.
    """
    return ConvolutionTable(device.name, tuple(_row(name, work, device) for name, work in works))


def explain_convolutions_of(result: Result) -> ConvolutionTable:
    """Return the same of each convolution of a step, forward and both gradients, slowest first.

    Those of sequences with a single tap are matmuls in a program and are not listed. Raise
    PlanError if the step has none.
    """
    works = {
        op.name: op.work
        for program in result.programs
        for op, _ in walk_ops(program.body, program.segments)
        if isinstance(op, Compute) and isinstance(op.work, ConvolutionWork)
    }
    if not works:
        raise PlanError(f"{result.name} has no convolutions to explain; leave --explain out")
    table = explain_convolutions(works.items(), result.pod.chip.device)
    return replace(table, rows=tuple(sorted(table.rows, key=lambda row: -row.seconds)))


def _row(name: str, work: ConvolutionWork, device: Device) -> ConvolutionRow:
    others = [
        Rearrangement(what, float(convolution_seconds(made, device)))
        for what, made in rearrangements(work)
    ]
    return ConvolutionRow(
        name=name,
        matmul=None if is_depthwise(work) else fastest_way(work, device),
        useful=float(useful_share(work, device)),
        flops=float(work.flops),
        seconds=float(convolution_seconds(work, device)),
        rearranged=tuple(others),
    )


def _sizes(way: MatmulWork) -> tuple[float, ...]:
    return tuple(float(size) for size in (way.batch, way.m, way.k, way.n))
