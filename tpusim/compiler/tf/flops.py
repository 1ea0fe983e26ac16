"""FLOPs of a step of TensorFlow, before the TPU compiler partitions it."""

from collections.abc import Mapping

from tpusim.base.phase import Phase
from tpusim.compiler.hlo.attributes import called_computations, op_name
from tpusim.compiler.hlo.module import Computation, HloModule, Instruction
from tpusim.compiler.tf.traced import TracedOperation
from tpusim.compiler.to_program.trip_counts import trip_count
from tpusim.compiler.work.dots import DOT_OPCODES, dot_shape


def step_flops(
    module: HloModule, operations: Mapping[str, TracedOperation], padding_taps: bool = True
) -> float:
    """Return the FLOPs of all matmuls and convolutions, 2 per multiply-add, as `count_flops` does.

    operations: those of TensorFlow by name; recomputed ones do not count.
    padding_taps: include the taps of convolutions on padding.
    """
    recomputed = {name for name, each in operations.items() if each.phase is Phase.RECOMPUTE}
    return _counted(module, module.main, recomputed, padding_taps)


def _counted(
    module: HloModule, computation: Computation, recomputed: set[str], padding_taps: bool
) -> float:
    return sum(
        _flops(module, computation, each, recomputed, padding_taps)
        for each in computation.instructions
        if op_name(each) not in recomputed
    )


def _flops(
    module: HloModule,
    computation: Computation,
    instruction: Instruction,
    recomputed: set[str],
    padding_taps: bool,
) -> float:
    if instruction.opcode in DOT_OPCODES:
        left, right = (each.arrays[0] for each in computation.operands(instruction)[:2])
        dot = dot_shape(instruction, left, right, instruction.arrays[0])
        return dot.flops if padding_taps else dot.flops - dot.padding_flops
    inner = [
        _counted(module, called, recomputed, padding_taps)
        for called in called_computations(module, instruction)
    ]
    if instruction.opcode == "while":
        return (trip_count(module, computation, instruction) or 1) * sum(inner)
    return max(inner, default=0.0) if instruction.opcode == "conditional" else sum(inner)
