"""Softmax of attention through HBM, which the matmuls that read its results compute."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeGuard

from tpusim.base.phase import Phase
from tpusim.graph import COMPUTE, Pointwise, is_sequence
from tpusim.lowering.decisions import Body, LoweringDecisions
from tpusim.partition import ComputeNode, LocalShape, Node

_WRITE_PROBABILITIES = {False: ("v4", "7x"), True: ("v2", "v3", "v4", "v5p", "7x")}
"""The generations that write probabilities that are read twice, by whether scores are in f32."""

_COMPUTE_GRADIENT = ("v5e",)
"""The generation that writes no gradient of scores in bf16."""

_COMPUTE_GRADIENT_OF_ONE = ("v5e", "v6e")
"""The generations that write none of the scores of one sequence."""


def compute_softmax_in_matmuls(nodes: Sequence[Node], body: Body) -> list[Node]:
    """Return the nodes with softmaxes, and their gradients, left to the matmuls that read them.

    What is held for the backward pass of attention is then the scores alone, with the gradient of
    the probabilities, and scores of one sequence, whose dimension is dropped, in the dtype in which
    they multiply. `docs/compiler.md` counts the programs (libtpu 0.0.42.1).
    """
    readers = Counter(key for node in nodes for key in node.reads)
    return [_inlined(node, body, readers) if _is_softmax(node) else node for node in nodes]


def _is_softmax(node: Node) -> TypeGuard[ComputeNode]:
    """Return True for a softmax of scores, [batch, heads, query, key], or its gradient."""
    if not (isinstance(node, ComputeNode) and isinstance(node.op, Pointwise)):
        return False
    over, dims = node.op.over, node.op.main.dims
    return over == dims[-1:] and is_sequence(over[0]) and len(dims) > len(("head", "query", "key"))


def _inlined(node: ComputeNode, body: Body, readers: Mapping[str, int]) -> ComputeNode:
    assert isinstance(node.op, Pointwise)
    local = body.buffers[node.writes[0]].local
    wide = [key for key in node.reads if body.buffers[key].dtype == "f32"]
    narrowed = bool(wide) and body.ask(_drops_dimension, local)
    for key in wide if narrowed else ():
        body.buffers[key] = replace(body.buffers[key], dtype=COMPUTE)
    if node.phase is Phase.BACKWARD:
        inlined = body.ask(_computes_gradient, local, bool(wide))
    else:
        twice = readers[node.writes[0]] > 1
        inlined = body.ask(_computes_probabilities, local, bool(wide), twice)
    return replace(node, op=replace(node.op, inlined=True)) if inlined else node


def _drops_dimension(decisions: LoweringDecisions, local: LocalShape) -> bool:
    """Return True if a device has one sequence, whose dimension it drops; 7x keeps it."""
    one = bool(decisions.sizes.extent(local.dims[0], local.layout[0]) == 1)
    return one and decisions.chip.generation != "7x"


def _computes_probabilities(
    decisions: LoweringDecisions, local: LocalShape, wide: bool, twice: bool
) -> bool:
    if not twice and decisions.chip.generation != "7x":
        return True
    writes = _WRITE_PROBABILITIES[wide and not _drops_dimension(decisions, local)]
    return decisions.chip.generation not in writes


def _computes_gradient(decisions: LoweringDecisions, local: LocalShape, wide: bool) -> bool:
    """Return True if matmuls compute the gradient of scores, as of one pass over the keys."""
    chip = decisions.chip
    if _drops_dimension(decisions, local) and chip.generation in _COMPUTE_GRADIENT_OF_ONE:
        return True
    keys = decisions.sizes.extent(local.dims[-1], local.layout[-1])
    return not wide and (chip.generation in _COMPUTE_GRADIENT or bool(keys <= chip.mxu_side))
