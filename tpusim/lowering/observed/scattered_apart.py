"""Sums of matmuls whose terms are scattered one by one, in collective matmuls."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tpusim.graph import Einsum, Pointwise
from tpusim.lowering.decisions import Body
from tpusim.lowering.passes.fuse_collectives import scatter_is_fused
from tpusim.partition import Buffer, CollectiveNode, ComputeNode, Node, unfused
from tpusim.program import CollectiveKind


@dataclass(frozen=True, slots=True)
class _ScatteredSum:
    """A scattered sum of matmuls: its collective, the matmuls, and the addition."""

    scatter: CollectiveNode
    matmuls: tuple[ComputeNode, ...]
    adding: ComputeNode


def scatter_apart(nodes: Sequence[Node], body: Body) -> list[Node]:
    """Scatter the terms of a sum of matmuls before they are added up.

    The partitioner decides matmul by matmul, and adds up first what it does not make a ring: the
    gradients of gate's and up's input are two rings, those of Q's, K's and V's one scatter
    (language models with norms sharded by tokens, v6e 4x4 and v5p 4x4x8, libtpu 0.0.42.1). The
    parts are added to the buffers.
    """
    result = list(nodes)
    for one in [
        one
        for one in _sums(nodes)
        if all(scatter_is_fused(body, one.scatter, c) for c in one.matmuls)
    ]:
        result = list(_apart(result, one, body.buffers))
    return result


def _sums(nodes: Sequence[Node]) -> Iterator[_ScatteredSum]:
    """Yield the sums of matmuls that a scatter follows and nothing else reads."""
    readers: dict[str, list[Node]] = {}
    for node in nodes:
        for key in node.reads:
            readers.setdefault(key, []).append(node)
    computes = [node for node in nodes if isinstance(node, ComputeNode)]
    makers = {
        key: unfused(compute)[0] for compute in computes for key in unfused(compute)[0].writes
    }
    for node in nodes:
        if not isinstance(node, CollectiveNode) or node.kind is not CollectiveKind.REDUCE_SCATTER:
            continue
        host = next((compute for compute in computes if node.reads[0] in compute.writes), None)
        adding = unfused(host)[1:] if host and len(readers[node.reads[0]]) == 1 else ()
        if len(adding) != 1 or not _adds(adding[0]):
            continue
        matmuls = tuple(makers[key] for key in adding[0].reads if key in makers)
        alone = all(len(readers.get(key, ())) <= 1 for key in adding[0].reads)
        if alone and len(matmuls) == len(adding[0].reads) and all(map(_multiplies, matmuls)):
            yield _ScatteredSum(node, matmuls, adding[0])


def _adds(compute: ComputeNode) -> bool:
    return isinstance(compute.op, Pointwise) and compute.op.linear


def _multiplies(compute: ComputeNode) -> bool:
    return isinstance(compute.op, Einsum)


def _apart(nodes: Sequence[Node], one: _ScatteredSum, buffers: dict[str, Buffer]) -> Iterator[Node]:
    """Yield the nodes with a scatter after each matmul, and the sum of the parts in their place."""
    matmuls = {compute.name: compute for compute in one.matmuls}
    (made,) = one.scatter.writes
    parts: list[str] = []
    for node in nodes:
        if isinstance(node, ComputeNode) and node.name in matmuls:
            matmul = matmuls[node.name]
            (term,) = matmul.writes
            parts.append(f"{term}@{'+'.join(one.scatter.axes)}")
            buffers[parts[-1]] = replace(buffers[made], dtype=buffers[term].dtype)
            yield matmul
            yield replace(
                one.scatter,
                name=f"{one.scatter.kind}/{parts[-1]}",
                reads=(term,),
                writes=(parts[-1],),
                maker=matmul.op.name,
            )
        elif node is one.scatter:
            local = buffers[made].local.split()
            split = tuple((dim, axes) for dim, axes in local.items() if axes)
            yield replace(one.adding, split=split, reads=tuple(parts), writes=(made,))
        else:
            yield node
