"""Cast weights that are freed before the update: each when nothing of the step reads it any more.

The copies that a scan slices are one array for all layers, which lives until the last one has read
it. Written one after the other, each layer has arrays of its own: eight programs of `data` 16 and
`data` 4 x `fsdp` 4 on v4 2x2x4 and v6e 4x4, of four and eight layers, drop each layer's after its
backward pass. A weight outside of the layers is dropped after its last gather or lookup: the shard
of a head or a table leaves a gap of its size (v5p 2x2x4 and v6e 4x4, libtpu 0.0.42.1).
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from tpusim.base.phase import Phase
from tpusim.frames.body_frame import CAST
from tpusim.partition import DTYPE_BYTES, LoopNode, Node, PartitionedGraph, Sizes, StoredWeight
from tpusim.plan import Numerics
from tpusim.program import Alloc, Collective, Compute, Loop, Op, TopOp


def freed_when_read(
    ops: tuple[TopOp, ...],
    shards: Collection[str],
    partitioned: PartitionedGraph,
    numerics: Numerics,
    sizes: Sizes,
) -> tuple[TopOp, ...]:
    """Return a step that frees the cast weights of unscanned layers and those outside of layers.

    shards: the weights that are cast, by the operation `CAST`.
    """
    item = DTYPE_BYTES[numerics.compute]
    made: list[Alloc] = []
    layers: dict[str, tuple[str, ...]] = {}
    for node in partitioned.nodes:
        if isinstance(node, LoopNode) and node.scan.unrolled and node.phase is Phase.BACKWARD:
            own = {weight for weight, _ in node.gradients}.intersection(shards)
            layer = [_copy(w, item, sizes) for w in partitioned.weights if w.name in own]
            made += layer * node.scan.trips
            layers[node.name] = tuple(one.tensor for one in layer)
    after: dict[int, list[str]] = {}
    for weight in partitioned.weights:
        last = _last_reader(ops, weight.name, partitioned.nodes) if weight.name in shards else None
        if last is not None:
            made.append(_copy(weight, item, sizes))
            after.setdefault(last, []).append(made[-1].tensor)
    return tuple(
        _with_copies(op, made)
        if isinstance(op, Compute) and op.name == CAST
        else replace(op, body=_freeing(op.body, layers[op.name]))
        if isinstance(op, Loop) and op.name in layers
        else replace(op, frees=(*op.frees, *after[place]))
        if isinstance(op, Compute | Collective | Loop) and place in after
        else op
        for place, op in enumerate(ops)
    )


def _last_reader(ops: Sequence[TopOp], weight: str, nodes: Iterable[Node]) -> int | None:
    """Return the place of the last operation outside of loops that reads a weight's shard.

    None if a loop reads it, or nothing that has its own name here: a gather within a ring.
    """
    readers = [node for node in nodes if weight in node.reads]
    if any(isinstance(node, LoopNode) for node in readers):
        return None
    names = {node.name for node in readers}
    places = {op.name: place for place, op in enumerate(ops) if getattr(op, "name", "") in names}
    return max(places.values()) if places and places.keys() == names else None


def _copy(weight: StoredWeight, item: float, sizes: Sizes) -> Alloc:
    nbytes = item * sizes.elements(weight.updated)
    padded = nbytes * sizes.padding(weight.updated)
    return Alloc(f"{weight.name}/cast", nbytes, "cast weights", padded)


def _with_copies(cast: Compute, copies: Sequence[Alloc]) -> Compute:
    """Return the cast, which allocates `copies` apart."""
    (whole,) = cast.allocs
    rest = replace(
        whole,
        bytes=whole.bytes - sum(one.bytes for one in copies),
        padded=whole.padded - sum(one.padded for one in copies),
    )
    return replace(cast, allocs=(rest, *copies))


def _freeing(body: tuple[Op, ...], frees: tuple[str, ...]) -> tuple[Op, ...]:
    """Return the body of a loop, of which the last operation that is no loop frees tensors."""
    last, op = [(i, op) for i, op in enumerate(body) if isinstance(op, Compute | Collective)][-1]
    return (*body[:last], replace(op, frees=(*op.frees, *frees)), *body[last + 1 :])
