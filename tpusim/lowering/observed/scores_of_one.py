"""Softmax of scores in HBM, which the matmuls that read it compute."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeGuard

from tpusim.base.phase import Phase
from tpusim.graph import Pointwise, is_sequence
from tpusim.lowering.decisions import Body, LoweringDecisions
from tpusim.partition import ComputeNode, LocalShape, Node

_IN_EACH = ("v5e", "v6e")
_ON_ITS_OWN = "7x"


def inline_softmax(nodes: Sequence[Node], body: Body) -> list[Node]:
    return [_inlined(node, body) if _is_softmax(node) else node for node in nodes]


def _is_softmax(node: Node) -> TypeGuard[ComputeNode]:
    if not (isinstance(node, ComputeNode) and isinstance(node.op, Pointwise)):
        return False
    over, dims = node.op.over, node.op.main.dims
    return over == dims[-1:] and is_sequence(over[0]) and len(dims) > 3


def _has_one(decisions: LoweringDecisions, local: LocalShape) -> bool:
    return bool(decisions.sizes.extent(local.dims[0], local.layout[0]) == 1)


def _generation(decisions: LoweringDecisions) -> str:
    return decisions.chip.generation


def _inlined(node: ComputeNode, body: Body) -> Node:
    assert isinstance(node.op, Pointwise)
    one = body.ask(_has_one, body.buffers[node.writes[0]].local)
    generation = body.ask(_generation)
    for key in node.reads:
        if one and generation != "7x" and body.buffers[key].dtype == "f32":
            body.buffers[key] = replace(body.buffers[key], dtype="bf16")
    if node.phase is Phase.BACKWARD:
        inlined = one and generation in _IN_EACH
    else:
        inlined = generation != "v4" or one
    return replace(node, op=replace(node.op, inlined=True)) if inlined else node
