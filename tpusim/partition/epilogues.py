"""Fusion of element-wise groups into the matmuls and norms that they follow.

XLA writes an activation function, its gradient or a residual sum in the epilogue of the matmul
that makes its operand, so the intermediate never goes through HBM. Groups with statistics (norms,
softmax) and rotations stay on their own, as in the compiled programs; but a residual sum is part of
the norm, or of the gradient of one, that makes its last term: one pass reads the terms and what is
normed, and writes the sum (scanned layers with one norm on v6e 2x2 and with four on v5p 2x2x1,
forward and backward, libtpu 0.0.42.1).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from tpusim.base.phase import Phase
from tpusim.graph import Convolution, Einsum, Op, Pointwise
from tpusim.partition.partitioned_graph import ComputeNode, Node


def fuse_epilogues(nodes: Sequence[Node], kept: Iterable[str]) -> tuple[Node, ...]:
    """Fuse each element-wise group that can be fused, and return the nodes.

    A group joins the matmul that makes the last of its operands, if it reads that directly.

    nodes: of a body, in order.
    kept: buffers that are read outside of this body, and so are written in any case.
    """
    kept = set(kept)
    nodes = _generate_masks(nodes, kept)
    result: list[Node | None] = list(nodes)
    made = {key: place for place, node in enumerate(nodes) for key in node.writes}
    for place, node in enumerate(nodes):
        if not (
            isinstance(node, ComputeNode) and isinstance(node.op, Pointwise) and node.op.fusible
        ):
            continue
        others = (key for key in node.reads if key not in node.writes)
        host = max((made.get(key, -1) for key in others), default=-1)
        target = result[host] if host >= 0 else None
        if isinstance(target, ComputeNode) and _can_fuse(target.op, node.op):
            result[host] = _fused(target, node, node.op)
            result[place] = None
            made |= dict.fromkeys(node.writes, host)
    return _without_dead_writes([node for node in result if node is not None], kept)


def _generate_masks(nodes: Sequence[Node], kept: Collection[str]) -> list[Node]:
    """Let the matmuls that read a mask of the forward pass generate it.

    In the forward pass, both matmuls that read a mask generate it; it is never in HBM, at no more
    cycles than reading it takes; the backward pass writes it once and reads it three times (layers
    with a mask on v5e 4x4, v5p 4x4x4, v6e 4x4 and 16x16, libtpu 0.0.42.1).
    """
    made = {
        node.writes[0]: node
        for node in nodes
        if isinstance(node, ComputeNode)
        and isinstance(node.op, Pointwise)
        and node.op.generated
        and node.phase is Phase.FORWARD
    }
    for key in [key for key in made if key in kept or not _only_matmuls_read(nodes, key)]:
        del made[key]
    return [_with_generated_masks(node, made) for node in nodes if node not in made.values()]


def _only_matmuls_read(nodes: Sequence[Node], key: str) -> bool:
    """Return True if only matmuls read a buffer."""
    readers = [node for node in nodes if key in node.reads]
    return all(isinstance(node, ComputeNode) and isinstance(node.op, Einsum) for node in readers)


def _with_generated_masks(node: Node, made: Mapping[str, ComputeNode]) -> Node:
    """Return the node with the masks that it reads generated in it."""
    generated = [key for key in node.reads if key in made]
    if not (generated and isinstance(node, ComputeNode)):
        return node
    reads = (key for read in node.reads for key in (made[read].reads if read in made else (read,)))
    groups = (made[key].op for key in generated)
    masks = tuple(group for group in groups if isinstance(group, Pointwise))
    return replace(node, reads=tuple(dict.fromkeys(reads)), generated=masks)


def _can_fuse(op: Op, group: Pointwise) -> bool:
    """Return True if an element-wise group can run in the operation that makes its last operand.

    A grouped matmul is a kernel of its own, which takes none.
    """
    normed = isinstance(op, Pointwise) and op.over and group.linear
    multiplies = isinstance(op, Convolution) or (isinstance(op, Einsum) and not op.ragged)
    return multiplies or bool(normed)


def _fused(host: ComputeNode, node: ComputeNode, group: Pointwise) -> ComputeNode:
    others = tuple(key for key in node.reads if key not in host.writes)
    return replace(
        host,
        reads=tuple(dict.fromkeys((*host.reads, *others))),
        writes=(*host.writes, *node.writes),
        epilogue=(*host.epilogue, group),
        parts=(*(host.parts or (host,)), node),
    )


def unfused(compute: ComputeNode) -> tuple[ComputeNode, ...]:
    """Return the matmul without its epilogue, then the groups that were fused to it, in order."""
    if not compute.parts:
        return (compute,)
    matmul, *groups = compute.parts
    own = compute.reads[: len(matmul.reads)]
    return (replace(compute, reads=own, writes=matmul.writes, epilogue=(), parts=()), *groups)


def _without_dead_writes(nodes: list[Node], kept: set[str]) -> tuple[Node, ...]:
    """Drop writes of results that only their own epilogue reads."""
    readers = Counter(key for node in nodes for key in node.reads)
    return tuple(
        replace(node, writes=tuple(k for k in node.writes if readers[k] or k in kept))
        if isinstance(node, ComputeNode) and node.epilogue
        else node
        for node in nodes
    )
