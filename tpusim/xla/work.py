"""What an instruction of a compiled program asks of the core: the compiler's word, and our own."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

from tpusim.hardware.chip import DTYPES
from tpusim.program import Estimate, Several, Vector, Work, kind_of
from tpusim.xla.attributes import estimated_cycles, target
from tpusim.xla.inside import Tally, shares, written
from tpusim.xla.kernels import kernel
from tpusim.xla.masked import EVEN, masked
from tpusim.xla.module import Computation, Instruction, Module
from tpusim.xla.opcodes import FREE_TARGETS, KERNELS, PASSIVE
from tpusim.xla.shapes import HBM, Shape

Costs = Literal["compiler", "model"]

LONGEST = 2**62
"""Cycles that are no estimate: the compiler writes the largest number for what it cannot cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionWork:
    """The work of one instruction on one device.

    model: from shapes; it is there for every instruction. cycles: the compiler's estimate, if any.
    flops: matrix FLOPs, on elements that there are. read_bytes, write_bytes: through HBM.
    understood: whether all of it is known; note says what is not.
    """

    model: Work
    cycles: int | None
    flops: float
    read_bytes: float
    write_bytes: float
    understood: bool = True
    note: str = ""

    @property
    def kind(self) -> str:
        """What the breakdown calls it."""
        return kind_of(self.model)

    def by(self, costs: Costs, dtypes: Collection[str] = DTYPES) -> Work:
        """Its work as the compiler has it, where it says, or as the model has it.

        dtypes: those that the chip multiplies; any other is multiplied as bf16.
        """
        if costs == "compiler" and self.cycles is not None:
            return Estimate(self.kind, self.cycles, self.read_bytes, self.write_bytes)
        return _fitting(self.model, dtypes)


def _fitting(work: Work, dtypes: Collection[str]) -> Work:
    if isinstance(work, Several):
        return Several(tuple(_fitting(part, dtypes) for part in work.parts))  # type: ignore[misc]
    if isinstance(work, Vector | Estimate) or work.dtype in dtypes:
        return work
    return replace(work, dtype="bf16")


def is_free(instruction: Instruction) -> bool:
    """Whether it takes no time of the core: names, marks, and arithmetic on single numbers.

    The scalar unit counts loops and places beside the vector unit.
    """
    if instruction.opcode in PASSIVE:
        return True
    if instruction.opcode == "custom-call":
        return target(instruction) in FREE_TARGETS
    arrays = _arrays(instruction)
    single = bool(arrays) and all(shape.elements <= 1 for shape in arrays)
    return single and instruction.opcode in SCALAR and estimated_cycles(instruction) is None


SCALAR = frozenset({
    "add", "subtract", "multiply", "divide", "remainder", "maximum", "minimum", "negate", "abs",
    "sign", "compare", "select", "and", "or", "xor", "not", "clamp", "convert", "copy", "iota",
    "shift-left", "shift-right-logical", "shift-right-arithmetic", "bitcast-convert", "reshape",
    "broadcast", "slice", "dynamic-slice", "power", "sqrt", "rsqrt", "floor", "ceil",
    "is-finite",
})  # fmt: skip
"""Opcodes that the scalar unit runs on single numbers."""


def instruction_work(
    module: Module, computation: Computation, instruction: Instruction
) -> InstructionWork:
    """What one instruction of a computation asks of the core.

    Bytes: operands and results in HBM, in whole tiles; of an operand that is only sliced, the
    slice; of a result that is updated in place, the update. What lies on the chip is free: it has
    crossed HBM in a transfer of its own.

    An instruction that is not understood costs what its bytes take to pass.
    """
    try:
        return _work(module, computation, instruction)
    except (
        ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError,
    ) as error:  # fmt: skip
        moved = sum(shape.bytes for shape in _arrays(instruction) if shape.space == HBM)
        return InstructionWork(
            model=Vector(0, moved, 0), cycles=None, flops=0, read_bytes=0, write_bytes=moved,
            understood=False, note=f"{instruction.opcode}: {error}",
        )  # fmt: skip


def _work(module: Module, computation: Computation, instruction: Instruction) -> InstructionWork:
    operands = [computation[name] for name in instruction.operands]
    tally = Tally()
    parts = shares(module, instruction, operands, tally)
    groups = masked(instruction, tally)
    read = sum(
        part * shape.hbm_bytes
        for part, operand in zip(parts, operands, strict=False)
        for shape in operand.arrays
    )
    made = written(module, computation, instruction.name)
    write = sum(
        part * shape.hbm_bytes for part, shape in zip(made, instruction.arrays, strict=True)
    )  # fmt: skip
    if instruction.opcode == "custom-call" and target(instruction) in KERNELS:
        found = _kernel(module, instruction, operands, write)
    else:
        stored = sum(
            part * shape.elements for part, shape in zip(made, instruction.arrays, strict=True)
        )
        found = _plain(tally, read, write, stored, EVEN if groups > 1 else "")
    cycles = _cycles(instruction)
    return replace(found, cycles=None if cycles is None else cycles // groups)


def _kernel(
    module: Module, instruction: Instruction, operands: list[Instruction], write: float
) -> InstructionWork:
    shapes = [shape for operand in operands for shape in operand.arrays]
    made = kernel(module, instruction, shapes, sum(shape.hbm_bytes for shape in shapes), write)
    return InstructionWork(
        model=made.work, cycles=None, flops=made.flops,
        read_bytes=float(made.work.read_bytes), write_bytes=float(made.work.write_bytes),
        understood=made.understood, note=made.note,
    )  # fmt: skip


def _plain(tally: Tally, read: float, write: float, stored: float, assumed: str) -> InstructionWork:
    return InstructionWork(
        model=tally.work(read, write, stored), cycles=None, flops=tally.flops,
        read_bytes=read, write_bytes=write,
        understood=not tally.strange, note="; ".join(sorted(set(tally.strange))) or assumed,
    )  # fmt: skip


def _cycles(instruction: Instruction) -> int | None:
    found = estimated_cycles(instruction)
    return found if found is not None and found < LONGEST else None


def _arrays(instruction: Instruction) -> tuple[Shape, ...]:
    try:
        return instruction.arrays
    except ValueError:
        return ()
