"""Gates of shared experts before their last matmul: the order of an engine.

A gate of each token multiplies the result of the shared experts. The product of a gated operand is
the same, and its partial sums can be added to those of the routed experts, so that one collective
reduces both. vLLM and SGLang leave the results of shared experts unreduced for this.
"""

from dataclasses import replace

from tpusim.graph.contractions import Einsum
from tpusim.graph.function import function
from tpusim.graph.ops import Op
from tpusim.graph.pointwise import Pointwise

GATED = function("gated_by_sigmoid")


def with_early_gates(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """Return operations in which no gate follows the matmul whose result it multiplies."""
    makers = {op.output.name: op for op in ops if isinstance(op, Einsum)}
    moved: dict[str, Pointwise] = {}
    for op in ops:
        if isinstance(op, Pointwise) and op.function == GATED and op.inputs[0].name in makers:
            moved[op.inputs[0].name] = op
    if not moved:
        return ops
    made: list[Op] = []
    for op in ops:
        if isinstance(op, Einsum) and op.output.name in moved:
            continue
        if isinstance(op, Pointwise) and op.inputs and moved.get(op.inputs[0].name) is op:
            made += _gated_first(makers[op.inputs[0].name], op)
        else:
            made.append(op)
    return tuple(made)


def _gated_first(matmul: Einsum, gate: Pointwise) -> tuple[Op, Op]:
    """Return the gate on the operand of a matmul, and the matmul that makes the gate's result."""
    operand = replace(matmul.lhs, name=f"{matmul.lhs.name}_gated")
    first = replace(gate, inputs=(matmul.lhs, gate.inputs[1]), outputs=(operand,))
    return first, replace(matmul, lhs=operand, output=gate.outputs[0])
