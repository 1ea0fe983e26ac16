"""Cast weights of layers that are not scanned: each is freed by its layer's backward pass.

The copies that a scan slices are one array for all layers, which lives until the last one has read
it. Written one after the other, each layer has arrays of its own: eight programs of `data` 16 and
`data` 4 x `fsdp` 4 on v4 2x2x4 and v6e 4x4, of four and eight layers, drop each layer's after its
backward pass (libtpu 0.0.42.1).
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from tpusim.base.phase import Phase
from tpusim.frames.body_frame import CAST
from tpusim.partition import DTYPE_BYTES, LoopNode, PartitionedGraph, Sizes, StoredWeight
from tpusim.plan import Numerics
from tpusim.program import Alloc, Collective, Compute, Loop, Op, TopOp


def freed_by_layer(
    ops: tuple[TopOp, ...],
    shards: Collection[str],
    partitioned: PartitionedGraph,
    numerics: Numerics,
    sizes: Sizes,
) -> tuple[TopOp, ...]:
    """Return a step in which each layer that is not scanned frees its cast weights.

    shards: the weights that are cast, by the operation `CAST`.
    """
    item = DTYPE_BYTES[numerics.compute]
    made: list[Alloc] = []
    frees: dict[str, tuple[str, ...]] = {}
    for node in partitioned.nodes:
        if isinstance(node, LoopNode) and node.scan.unrolled and node.phase is Phase.BACKWARD:
            own = {weight for weight, _ in node.gradients}.intersection(shards)
            layer = [_copy(w, item, sizes) for w in partitioned.weights if w.name in own]
            made += layer * node.scan.trips
            frees[node.name] = tuple(one.tensor for one in layer)
    return tuple(
        _with_layers(op, made)
        if isinstance(op, Compute) and op.name == CAST
        else replace(op, body=_freeing(op.body, frees[op.name]))
        if isinstance(op, Loop) and op.name in frees
        else op
        for op in ops
    )


def _copy(weight: StoredWeight, item: float, sizes: Sizes) -> Alloc:
    nbytes = item * sizes.elements(weight.updated)
    padded = nbytes * sizes.padding(weight.updated)
    return Alloc(f"{weight.name}/cast", nbytes, "cast weights", padded)


def _with_layers(cast: Compute, layers: Sequence[Alloc]) -> Compute:
    """Return the cast, which allocates those of `layers` apart."""
    (whole,) = cast.allocs
    rest = replace(
        whole,
        bytes=whole.bytes - sum(one.bytes for one in layers),
        padded=whole.padded - sum(one.padded for one in layers),
    )
    return replace(cast, allocs=(rest, *layers))


def _freeing(body: tuple[Op, ...], frees: tuple[str, ...]) -> tuple[Op, ...]:
    """Return the body of a loop, of which the last operation that is no loop frees tensors."""
    last, op = [(i, op) for i, op in enumerate(body) if isinstance(op, Compute | Collective)][-1]
    return (*body[:last], replace(op, frees=(*op.frees, *frees)), *body[last + 1 :])
