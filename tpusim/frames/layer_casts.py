"""Cast weights that are freed before the update: each when nothing of the step reads it any more.

The copies that a scan slices are one array for all layers, which lives until the last one has read
it. Written one after the other, each layer has arrays of its own: eight programs of `data` 16 and
`data` 4 x `fsdp` 4 on v4 2x2x4 and v6e 4x4, of four and eight layers, drop each layer's after its
backward pass. A weight outside of the layers is dropped after its last gather or lookup: the shard
of a head or a table leaves a gap of its size (v5p 2x2x4 and v6e 4x4, libtpu 0.0.42.1). One that is
gathered is there just before: of the shards of heads of 40 MiB and more in programs for v2 to v4,
v5p and v6e 22 of 29 are cast by the operation before their gather, and of smaller ones 50 of 97; on
v5e and 7x, which gather beside other work, 57 of 64 are there before the layers.
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
    late: bool = True,
) -> tuple[TopOp, ...]:
    """Return a step that frees the cast weights of unscanned layers and those outside of layers.

    shards: the weights that are cast, by the operation `CAST`.
    late: those outside of layers that are gathered are there from then on, not from the cast.
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
    before: dict[int, list[Alloc]] = {}
    after: dict[int, list[str]] = {}
    start = next(place for place, op in enumerate(ops) if getattr(op, "name", "") == CAST)
    apart = [*made]
    for weight in partitioned.weights:
        readers = _readers(ops, weight.name, partitioned.nodes) if weight.name in shards else []
        if readers:
            apart.append(_copy(weight, item, sizes))
            at = readers[0] if late and isinstance(ops[readers[0]], Collective) else start
            before.setdefault(at, []).append(apart[-1])
            after.setdefault(readers[-1], []).append(apart[-1].tensor)
    return tuple(
        _with_copies(op, apart, (*made, *before.get(place, ())))
        if isinstance(op, Compute) and op.name == CAST
        else replace(op, body=_freeing(op.body, layers[op.name]))
        if isinstance(op, Loop) and op.name in layers
        else replace(
            op,
            allocs=(*before.get(place, ()), *op.allocs),
            frees=(*op.frees, *after.get(place, ())),
        )
        if isinstance(op, Compute | Collective | Loop)
        else op
        for place, op in enumerate(ops)
    )


def _readers(ops: Sequence[TopOp], weight: str, nodes: Iterable[Node]) -> list[int]:
    """Return the places of the operations outside of loops that read a weight's shard.

    None if a loop reads it, or one that has no name of its own here, as a gather within a ring.
    """
    readers = [node for node in nodes if weight in node.reads]
    if any(isinstance(node, LoopNode) for node in readers):
        return []
    names = {node.name for node in readers}
    places = {op.name: place for place, op in enumerate(ops) if getattr(op, "name", "") in names}
    return sorted(places.values()) if places.keys() == names else []


def _copy(weight: StoredWeight, item: float, sizes: Sizes) -> Alloc:
    nbytes = item * sizes.elements(weight.updated)
    padded = nbytes * sizes.padding(weight.updated)
    return Alloc(f"{weight.name}/cast", nbytes, "cast weights", padded)


def _with_copies(cast: Compute, copies: Sequence[Alloc], now: Sequence[Alloc]) -> Compute:
    """Return the cast, of which `copies` are allocated apart, and those of `now` by it."""
    (whole,) = cast.allocs
    rest = replace(
        whole,
        bytes=whole.bytes - sum(one.bytes for one in copies),
        padded=whole.padded - sum(one.padded for one in copies),
    )
    return replace(cast, allocs=(rest, *now))


def _freeing(body: tuple[Op, ...], frees: tuple[str, ...]) -> tuple[Op, ...]:
    """Return the body of a loop, of which the last operation that is no loop frees tensors."""
    last, op = [(i, op) for i, op in enumerate(body) if isinstance(op, Compute | Collective)][-1]
    return (*body[:last], replace(op, frees=(*op.frees, *frees)), *body[last + 1 :])
