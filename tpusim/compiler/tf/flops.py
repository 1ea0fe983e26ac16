"""FLOPs of a step of TensorFlow, before the TPU compiler partitions it."""

from collections.abc import Mapping

from tpusim.base.phase import Phase
from tpusim.compiler.hlo.attributes import called_computations, op_name
from tpusim.compiler.hlo.module import Computation, HloModule, Instruction
from tpusim.compiler.lower.trip_counts import trip_count
from tpusim.compiler.tf.traced import TracedOperation
from tpusim.compiler.work.dots import DOT_OPCODES, dot_shape


def step_flops(module: HloModule, operations: Mapping[str, TracedOperation]) -> float:
    """Return the FLOPs of all matmuls and convolutions, 2 per multiply-add, as `count_flops` does.

    operations: those of TensorFlow by name; recomputed ones do not count.
    """
    recomputed = {name for name, each in operations.items() if each.phase is Phase.RECOMPUTE}
    return _counted(module, module.main, recomputed)


def _counted(module: HloModule, computation: Computation, recomputed: set[str]) -> float:
    return sum(
        _flops(module, computation, each, recomputed)
        for each in computation.instructions
        if op_name(each) not in recomputed
    )


def _flops(
    module: HloModule, computation: Computation, instruction: Instruction, recomputed: set[str]
) -> float:
    if instruction.opcode in DOT_OPCODES:
        left, right = (each.arrays[0] for each in computation.operands(instruction)[:2])
        return dot_shape(instruction, left, right, instruction.arrays[0]).flops
    inner = [
        _counted(module, called, recomputed) for called in called_computations(module, instruction)
    ]
    if instruction.opcode == "while":
        return (trip_count(module, computation, instruction) or 1) * sum(inner)
    return max(inner, default=0.0) if instruction.opcode == "conditional" else sum(inner)
