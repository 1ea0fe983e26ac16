"""Attention without a kernel: which of the scores, their softmax and its gradient are in memory."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeGuard

from tpusim.base.phase import Phase
from tpusim.graph import COMPUTE, Einsum, Op, Pointwise, Tensor, is_sequence
from tpusim.lowering.decisions import Body, LoweringDecisions
from tpusim.partition import ComputeNode, LocalShape, Node

_WIDE = "f32"
"""The dtype of scores that are written as they are added up."""


def softmax_in_matmuls(nodes: Sequence[Node], body: Body) -> list[Node]:
    """Return the nodes with each softmax, and each gradient of one, that its readers compute.

    The matmul with the values divides exponentials by their sums as it reads them, so in the
    forward pass only the scores are in memory (40 of 40 programs on v3 to 7x). In the backward pass
    two matmuls read the softmax, unless the product with the values is saved, and two its gradient:
    either may be computed in both, see `_in_readers`. Where a device has one sequence, whose
    dimension is dropped, a softmax in f32 reads scores in the compute dtype (12 of 12; of several
    sequences none of 19 on v4 to 7x; libtpu 0.0.42.1).
    """
    keys = {key for one in nodes if isinstance(one, ComputeNode) for key in one.writes}
    narrow = {key for key in keys if _is_wide(body, key)}
    fused = {node.name for node in nodes if _is_softmax(node) and _fuses(node, body)}
    for key in narrow:
        body.buffers[key] = replace(body.buffers[key], dtype=COMPUTE)
    result: list[Node] = []
    for node in nodes:
        if isinstance(node, ComputeNode):
            op = node.op
            if node.name in fused and isinstance(op, Pointwise):
                op = replace(op, inlined=True)
            if not narrow.isdisjoint((*node.reads, *node.writes)):
                op = _narrowed(op)
            node = replace(node, op=op)
        result.append(node)
    return result


def _is_wide(body: Body, key: str) -> bool:
    """Return True for scores of one sequence in f32."""
    buffer = body.buffers[key]
    scores = buffer.dtype == _WIDE and _of_scores(buffer.local.dims)
    return scores and body.ask(_of_one_sequence, buffer.local)


def _fuses(node: ComputeNode, body: Body) -> bool:
    wide = any(t.dtype == _WIDE and _of_scores(t.dims) for t in node.op.inputs)
    saved = body.remat.policy == "dots"
    local = body.buffers[node.writes[0]].local
    return body.ask(_in_readers, node.phase, local, wide, saved)


def _narrowed(op: Op) -> Op:
    if isinstance(op, Einsum):
        lhs, rhs = map(_in_compute_dtype, op.inputs)
        return replace(op, lhs=lhs, rhs=rhs, output=_in_compute_dtype(op.output))
    if isinstance(op, Pointwise):
        inputs, outputs = (tuple(map(_in_compute_dtype, of)) for of in (op.inputs, op.outputs))
        return replace(op, inputs=inputs, outputs=outputs)
    return op


def _in_compute_dtype(tensor: Tensor) -> Tensor:
    return replace(tensor, dtype=COMPUTE) if _of_scores(tensor.dims) else tensor


def _of_scores(dims: Sequence[str]) -> bool:
    """Return True for [batch, heads, query, key]."""
    return len(dims) > 2 and all(map(is_sequence, dims[-2:]))


def _is_softmax(node: Node) -> TypeGuard[ComputeNode]:
    if not (isinstance(node, ComputeNode) and isinstance(node.op, Pointwise)):
        return False
    return bool(node.op.over) and _of_scores(node.op.outputs[0].dims)


def _of_one_sequence(decisions: LoweringDecisions, local: LocalShape) -> bool:
    return bool(decisions.sizes.extent(local.dims[0], local.layout[0]) == 1)


def _in_readers(
    decisions: LoweringDecisions, phase: Phase, local: LocalShape, wide: bool, saved: bool
) -> bool:
    """Return True if the readers of a softmax, or of a gradient of one, compute it.

    Of recomputation it is written on v4 and 7x, and where it is in f32 on v3 and v5p too (11 of 11;
    none of 21 others), unless one matmul alone reads it (`dots`: 6 of 6). The gradient is computed
    in both on v5e in the compute dtype (8 of 8), and of one sequence on v5e and v6e, and in f32 on
    v5p (12 of 12); of 24 others 23 write it.

    wide: the softmax is in f32.
    saved: the product with the values is saved, so that the backward pass does not multiply again.
    """
    chip = decisions.chip.generation
    if phase is Phase.FORWARD:
        return True
    if phase is Phase.RECOMPUTE:
        return saved or chip in ("v5e", "v6e") or not (wide or chip in ("v4", "7x"))
    one = _of_one_sequence(decisions, local)
    in_both = chip == "v6e" or (wide and chip == "v5p")
    return (chip == "v5e" and (one or not wide)) or (one and in_both)
