"""Fusion of element-wise groups into the matmuls and norms that they follow.

XLA writes an activation function, its gradient or a residual sum in the epilogue of the matmul
that makes its operand, so the intermediate never goes through HBM. Groups with statistics (norms,
softmax) and rotations stay on their own, as in the compiled programs; but a residual sum is part of
the norm, or of the gradient of one, that makes its last term: one pass reads the terms and what is
normed, and writes the sum (scanned layers with one norm on v6e 2x2 and with four on v5p 2x2x1,
forward and backward, libtpu 0.0.42.1).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import TypeGuard

from tpusim.base.phase import Phase
from tpusim.graph import Einsum, Op, Pointwise
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
        if isinstance(target, ComputeNode) and _can_fuse(target, node):
            result[host] = _fused(target, node, node.op)
            result[place] = None
            made |= dict.fromkeys(node.writes, host)
    fused = _without_dead_writes([node for node in result if node is not None], kept)
    return _read_through(fused, kept)


def _generate_masks(nodes: Sequence[Node], kept: Collection[str]) -> list[Node]:
    """Let the matmuls that read a mask generate it.

    All of them do, forward and backward, at no more cycles than reading it takes; it is never in
    HBM, nor is its gradient, which is summed over the slots in the epilogue of the matmul that
    makes it (20 of 20 programs with a mask on v4 to 7x that do not move it; libtpu 0.0.42.1).
    """
    made = {
        node.writes[0]: node
        for node in nodes
        if isinstance(node, ComputeNode) and isinstance(node.op, Pointwise) and node.op.generated
    }
    for key in [key for key in made if key in kept or not _only_matmuls_read(nodes, key)]:
        del made[key]
    return [_with_generated(node, made) for node in nodes if node not in made.values()]


def _read_through(nodes: Sequence[Node], kept: Set[str]) -> tuple[Node, ...]:
    """Let convolutions, and what is scaled like it, compute a scaled operand that they alone read.

    Each convolution that reads a normalised tensor, with its activation function, computes it from
    what was normalised, in the backward pass too, and so does the mask of a rectifier in a
    convolution's epilogue: neither is ever in HBM. What a residual sum or a pool reads is written,
    and so is what would have to be read more often: the sum of two tensors that five convolutions
    read. (A ResNet-50 of 128 images a device on v4 2x2x1: all of 32 forward, none of 16 residual
    sums, and 49 of 53 gradients of norms; the other four are operands of kernels of 64 x 64
    channels. libtpu 0.0.42.1.)

    So does whatever reads a group that is inlined (`Remat.left_to_compiler`).
    """
    scaled: dict[str, ComputeNode] = {}
    result: list[Node] = []
    for node in nodes:
        node = _with_generated(node, scaled)
        if _is_read_through(node, nodes, kept):
            scaled |= dict.fromkeys(node.writes, node)
        else:
            result.append(node)
    return tuple(result)


def _is_read_through(node: Node, nodes: Sequence[Node], kept: Set[str]) -> TypeGuard[ComputeNode]:
    """Return True for a group after statistics whose one result only matmuls read.

    And for one that is inlined, if no kernel and no collective reads it.
    """
    if not (isinstance(node, ComputeNode) and isinstance(node.op, Pointwise)):
        return False
    if node.op.inlined:
        return kept.isdisjoint(node.writes) and all(
            isinstance(one, ComputeNode) and isinstance(one.op, Einsum | Pointwise)
            for one in nodes
            if not set(node.writes).isdisjoint(one.reads)
        )
    if not node.op.after_sums or len(node.writes) != 1 or node.writes[0] in kept:
        return False
    readers = [one for one in nodes if node.writes[0] in one.reads]
    operands = _large_operands(node)
    if operands * len(readers) > operands + 1 + len(readers):
        return False
    return bool(readers) and all(
        isinstance(one, ComputeNode)
        and (one.multiplies or (isinstance(one.op, Pointwise) and one.op.after_sums))
        and one.phase is not Phase.RECOMPUTE
        for one in readers
    )


def _large_operands(node: ComputeNode) -> int:
    """Return how many operands from HBM are as large as the result of an element-wise group."""
    ops = (*node.generated, node.op, *node.epilogue)
    groups = tuple(op for op in ops if isinstance(op, Pointwise))
    own = {tensor.name for group in groups for tensor in group.outputs}
    rank = len(groups[0].main.dims)
    read = {t.name for group in groups for t in group.inputs if len(t.dims) == rank}
    return len(read - own)


def _only_matmuls_read(nodes: Sequence[Node], key: str) -> bool:
    """Return True if only matmuls read a buffer."""
    readers = [node for node in nodes if key in node.reads]
    return all(isinstance(node, ComputeNode) and isinstance(node.op, Einsum) for node in readers)


def _with_generated(node: Node, made: Mapping[str, ComputeNode]) -> Node:
    """Return the node with those of its operands generated in it that `made` says."""
    found = [made[key] for key in node.reads if key in made]
    if not (found and isinstance(node, ComputeNode)):
        return node
    reads = (key for read in node.reads for key in (made[read].reads if read in made else (read,)))
    groups = (group for one in found for group in (*one.generated, one.op, *one.epilogue))
    generated = tuple(group for group in groups if isinstance(group, Pointwise))
    return replace(
        node,
        reads=tuple(dict.fromkeys(reads)),
        generated=tuple(dict.fromkeys((*node.generated, *generated))),
    )


def _can_fuse(host: ComputeNode, node: ComputeNode) -> bool:
    """Return True if an element-wise group can run in the operation that makes its last operand.

    A grouped matmul is a kernel of its own, which takes none. A group that uses statistics waits
    for all of them. One that repeats what a matmul makes, a scale of each channel over all
    positions, has more elements than the matmul computes.
    """
    op, group = host.op, node.op
    if not isinstance(group, Pointwise) or _waits_for_sums(host, node):
        return False
    if isinstance(op, Pointwise):
        return bool(op.over and group.linear) or (op.after_sums and group.element_wise)
    return host.multiplies and not _repeats(op, group)


def _repeats(op: Op, group: Pointwise) -> bool:
    """Return True if an element-wise group has dimensions that a matmul's result has not."""
    return len(group.main.dims) > len(op.outputs[0].dims)


def _waits_for_sums(host: ComputeNode, node: ComputeNode) -> bool:
    """Return True if a group reads statistics that the host would make."""
    made = {
        key
        for part in host.parts
        if isinstance(part.op, Pointwise) and part.op.sums
        for key in part.writes
    }
    return not made.isdisjoint(node.reads)


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
