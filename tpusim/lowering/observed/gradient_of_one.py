"""The gradient of the logits of one sequence, which both matmuls read from memory."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeGuard

from tpusim.base.phase import Phase
from tpusim.graph import Pointwise, plain_dim
from tpusim.lowering.decisions import Body, LoweringDecisions
from tpusim.partition import ComputeNode, LocalShape, Node

_IN_EACH = ("v5e", "v6e")
"""The generations whose matmuls compute it all the same."""


def share_gradient(nodes: Sequence[Node], body: Body) -> list[Node]:
    """Return the nodes with the gradient of one sequence's logits as an operation on its own.

    A device's dimension of one sequence is dropped, so that the two matmuls that read the gradient
    have operands of one shape, and the compiler computes it once for both, if it is larger than the
    gradient of the head: 12 of 12 programs without rings on v4, v5p and 7x, of 4,096 to 16,384
    tokens and 32,000 to 262,144 words; 0 of 1 where both are as large, 0 of 3 whose vocabulary is
    sharded, 0 of 3 on v5e and v6e, and 0 of 2 with four sequences (libtpu 0.0.42.1).
    """
    made = {node.writes[0]: node for node in nodes if _is_of_logits(node)}
    shared = {
        key
        for node in nodes
        if isinstance(node, ComputeNode) and node.op.outputs[0].primal in body.weights
        for key in made.keys() & {*node.reads}
        if body.ask(_is_computed_once, body.buffers[key].local, key, node.writes[0])
    }
    return [
        _on_its_own(node) if _is_of_logits(node) and node.writes[0] in shared else node
        for node in nodes
    ]


def _on_its_own(node: ComputeNode) -> ComputeNode:
    assert isinstance(node.op, Pointwise)
    return replace(node, op=replace(node.op, alone=True))


def _is_of_logits(node: Node) -> TypeGuard[ComputeNode]:
    if not (isinstance(node, ComputeNode) and isinstance(node.op, Pointwise)):
        return False
    dims = node.op.outputs[0].dims
    backward = node.phase is Phase.BACKWARD and bool(node.op.over)
    return backward and len(dims) > 1 and plain_dim(dims[-1]) == "vocab"


def _is_computed_once(
    decisions: LoweringDecisions, local: LocalShape, key: str, result: str
) -> bool:
    one = bool(decisions.sizes.extent(local.dims[0], local.layout[0]) == 1)
    whole = not local.layout[-1]
    larger = decisions.buffer_bytes(key) > decisions.buffer_bytes(result)
    return one and whole and larger and decisions.chip.generation not in _IN_EACH
