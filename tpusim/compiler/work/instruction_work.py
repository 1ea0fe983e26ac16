"""The work of a compiled instruction on the core: the compiler's estimate, and our own model."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

from tpusim.compiler.hlo.attributes import call_target, estimated_cycles
from tpusim.compiler.hlo.module import Computation, HloModule, Instruction
from tpusim.compiler.hlo.opcodes import FREE_TARGETS, KERNEL_TARGETS, PASSIVE_OPCODES
from tpusim.compiler.hlo.shapes import HBM_SPACE
from tpusim.compiler.work.fusion_cost import (
    EVEN_GROUPS,
    FusionCost,
    operand_shares,
    ragged_groups,
    written_shares,
)
from tpusim.compiler.work.kernels import kernel_work
from tpusim.compiler.work.relayout import tile_count
from tpusim.hardware import DTYPES
from tpusim.program import CachedLinearWork, CombinedWork, EstimatedWork, VectorWork, Work, kind_of

Costs = Literal["compiler", "model"]

NO_CYCLES = 2**62
"""Cycles that are no estimate: the compiler writes the largest number if it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionWork:
    """The work of one instruction on one device.

    model: from shapes; always there.
    cycles: the compiler's estimate, if any.
    flops: matrix FLOPs; of convolutions, of all taps.
    padding_flops: those of taps on padding.
    read_bytes, write_bytes: through HBM.
    understood: True if all of the work is known; otherwise `note` says what is not.
    """

    model: Work
    cycles: int | None = None
    flops: float = 0
    padding_flops: float = 0
    read_bytes: float = 0
    write_bytes: float
    understood: bool = True
    note: str = ""

    @property
    def kind(self) -> str:
        """The kind under which the breakdown lists it."""
        return kind_of(self.model)

    def costed_by(self, costs: Costs, dtypes: Collection[str] = DTYPES) -> Work:
        """Return the work by the compiler's estimate, where there is one, or by the model.

        dtypes: those that the chip multiplies; others are multiplied as bf16.
        """
        if costs == "compiler" and self.cycles is not None:
            return EstimatedWork(self.kind, self.cycles, self.read_bytes, self.write_bytes)
        return _supported(self.model, dtypes)


def _supported(work: Work, dtypes: Collection[str]) -> Work:
    if isinstance(work, CombinedWork):
        return CombinedWork(tuple(_supported(part, dtypes) for part in work.parts))  # type: ignore[misc]
    others = VectorWork | EstimatedWork | CachedLinearWork
    if isinstance(work, others) or work.dtype in dtypes:
        return work
    return replace(work, dtype="bf16")


def is_free(instruction: Instruction) -> bool:
    """Return True if it takes no core time: names, markers, and arithmetic on single numbers.

    The scalar unit counts loops and indices beside the vector unit.
    """
    if instruction.opcode in PASSIVE_OPCODES:
        return True
    if instruction.opcode == "custom-call":
        return call_target(instruction) in FREE_TARGETS
    arrays = instruction.arrays
    single = bool(arrays) and all(shape.elements <= 1 for shape in arrays)
    return single and instruction.opcode in SCALAR_OPCODES and estimated_cycles(instruction) is None


SCALAR_OPCODES = frozenset({
    "add", "subtract", "multiply", "divide", "remainder", "maximum", "minimum", "negate", "abs",
    "sign", "compare", "select", "and", "or", "xor", "not", "clamp", "convert", "copy", "iota",
    "shift-left", "shift-right-logical", "shift-right-arithmetic", "bitcast-convert", "reshape",
    "broadcast", "slice", "power", "sqrt", "rsqrt", "floor", "ceil",
    "is-finite",
})  # fmt: skip
"""Opcodes that the scalar unit runs on single numbers."""


def instruction_work(
    module: HloModule, computation: Computation, instruction: Instruction
) -> InstructionWork:
    """Return the work of one instruction of a computation on the core.

    Bytes are those of operands and results in HBM, in whole tiles; of a sliced operand, the slice;
    of a result that is updated in place, the update. Arrays on the chip are free: they crossed HBM
    in a transfer of their own.

    An instruction that is not understood costs the time of its bytes.
    """
    try:
        return _work(module, computation, instruction)
    except (ArithmeticError, RecursionError, ValueError) as error:
        moved = sum(shape.bytes for shape in instruction.arrays if shape.space == HBM_SPACE)
        model, note = VectorWork(0, moved, 0), f"{instruction.opcode}: {error}"
        return InstructionWork(model=model, write_bytes=moved, understood=False, note=note)


def _work(module: HloModule, computation: Computation, instruction: Instruction) -> InstructionWork:
    operands = computation.operands(instruction)
    tally = FusionCost()
    parts = operand_shares(module, instruction, operands, tally)
    groups = ragged_groups(instruction, tally)
    shares = written_shares(module, computation, instruction.name)
    made = list(zip(shares, instruction.arrays, strict=True))
    write = sum(part * shape.hbm_bytes for part, shape in made)
    if instruction.opcode == "custom-call" and call_target(instruction) in KERNEL_TARGETS:
        shapes = [shape for operand in operands for shape in operand.arrays]
        inputs = sum(shape.hbm_bytes for shape in shapes)
        kernel = kernel_work(module, instruction, shapes, inputs, write)
        work, flops, understood, note = kernel.work, kernel.flops, kernel.understood, kernel.note
        read, write = float(work.read_bytes), float(work.write_bytes)
    else:
        read = sum(
            part * shape.hbm_bytes
            for part, operand in zip(parts, operands, strict=False)
            for shape in operand.arrays
            if shape.dims
        )
        stored = sum(part * shape.elements for part, shape in made)
        on_chip = [(part, shape) for part, shape in made if shape.space != HBM_SPACE]
        tiles = sum(part * tile_count(shape) for part, shape in on_chip)
        work = tally.work(read, write, stored, tiles)
        flops, understood = tally.flops, not tally.unknown
        note = "; ".join(sorted(set(tally.unknown))) or (EVEN_GROUPS if groups > 1 else "")
    cycles = estimated_cycles(instruction)
    return InstructionWork(
        model=work,
        cycles=None if cycles is None or cycles >= NO_CYCLES else cycles // groups,
        flops=flops,
        padding_flops=tally.padding_flops,
        read_bytes=read,
        write_bytes=write,
        understood=understood,
        note=note,
    )


def has_estimates(module: HloModule) -> bool:
    """Return True if the compiler estimated any fusion of the core, as it does with its code.

    Its estimates of operations of the SparseCore come before.
    """
    return any(
        (estimated_cycles(each) or NO_CYCLES) < NO_CYCLES
        for computation in module.computations.values()
        for each in computation.instructions
        if each.opcode == "fusion"
    )
