"""Cast weights that are freed before the update: each when nothing of the step reads it any more.

The copies that a scan slices are one array for all layers, which lives until the last one has read
it. Written one after the other, each layer has arrays of its own: eight programs of `data` 16 and
`data` 4 x `fsdp` 4 on v4 2x2x4 and v6e 4x4, of four and eight layers, drop each layer's after its
backward pass. A weight outside of the layers is cast before its first gather or lookup, and dropped
after its last one: the shard of a head or a table leaves a gap of its size (v5p 2x2x4, libtpu
0.0.42.1). One that is read once is on the chip in between, and leaves none, where programs keep
buffers there: 102 of 126 of up to 64 MiB on v4, v5e and v6e, none of 41 on v5p and 3 of 22 on 7x;
stacks of the layers never are. Those are cast before the layers, or first of all where the weights
of layers are gathered beside the core.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import TypeGuard

from tpusim.base.phase import Phase
from tpusim.frames.body_frame import CAST
from tpusim.partition import DTYPE_BYTES, LoopNode, Node, PartitionedGraph, Sizes, StoredWeight
from tpusim.plan import Numerics
from tpusim.program import (
    Alloc,
    Collective,
    CollectiveKind,
    Compute,
    Loop,
    Mode,
    Op,
    TopOp,
    walk_ops,
)

LARGEST_ON_CHIP = 64 * 2.0**20
"""Bytes of the largest cast shard that is on the chip until it is read."""


def freed_when_read(
    ops: tuple[TopOp, ...],
    shards: Collection[str],
    partitioned: PartitionedGraph,
    numerics: Numerics,
    sizes: Sizes,
    room: float = 0.0,
) -> tuple[TopOp, ...]:
    """Return a step that frees the cast weights of unscanned layers and those outside of layers.

    shards: the weights that are cast, by the operation `CAST`.
    room: bytes on the chip for buffers between operations.
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
    cast, whole = next((i, op.allocs[0]) for i, op in enumerate(ops) if _casts(op))
    apart: list[Alloc] = []
    before: dict[int, list[Alloc]] = {}
    after: dict[int, list[str]] = {}
    for weight in partitioned.weights:
        readers = _readers(ops, weight.name, partitioned.nodes) if weight.name in shards else []
        if readers:
            apart.append(_copy(weight, item, sizes))
            if len(readers) > 1 or apart[-1].bytes > min(room, LARGEST_ON_CHIP):
                before.setdefault(cast, []).append(apart[-1])
                after.setdefault(_last(ops, readers), []).append(apart[-1].tensor)
    stacks = [_without(whole, (*made, *apart)), *made]
    loops = (
        [] if _gathers_beside_core(ops) else [i for i, op in enumerate(ops) if isinstance(op, Loop)]
    )
    before.setdefault(min(loops, default=cast), []).extend(stacks)

    def cast_there(place: int, op: TopOp) -> TopOp:
        if not isinstance(op, Compute | Collective | Loop):
            return op
        if isinstance(op, Loop) and op.name in layers:
            op = replace(op, body=_freeing(op.body, layers[op.name]))
        if place != cast and place not in before and place not in after:
            return op
        own = () if place == cast else op.allocs
        allocs = (*before.get(place, ()), *own)
        return replace(op, allocs=allocs, frees=(*op.frees, *after.get(place, ())))

    return tuple(cast_there(place, op) for place, op in enumerate(ops))


def _casts(op: TopOp) -> TypeGuard[Compute]:
    return isinstance(op, Compute) and op.name == CAST


def _gathers_beside_core(ops: Iterable[TopOp]) -> bool:
    """Return True if a loop gathers weights while the core goes on."""
    inside = (op for loop in ops if isinstance(loop, Loop) for op, _ in walk_ops(loop.body))
    return any(map(_is_gather_beside_core, inside))


def _is_gather_beside_core(op: TopOp) -> bool:
    if not isinstance(op, Collective):
        return False
    return op.kind is CollectiveKind.ALL_GATHER and op.mode is Mode.ASYNC


def _readers(ops: Sequence[TopOp], weight: str, nodes: Iterable[Node]) -> list[int]:
    """Return the places of the operations outside of loops that read a weight's shard, in order.

    Empty if a loop reads it, or something without a name of its own here: a gather within a ring.
    """
    readers = [node for node in nodes if weight in node.reads]
    if any(isinstance(node, LoopNode) for node in readers):
        return []
    names = {node.name for node in readers}
    places = {op.name: place for place, op in enumerate(ops) if getattr(op, "name", "") in names}
    return sorted(places.values()) if places.keys() == names else []


def _last(ops: Sequence[TopOp], readers: Sequence[int]) -> int:
    """Return the place of the reader that is done last: a gather beside the core, if any."""
    beside = (place for place in readers if _is_gather_beside_core(ops[place]))
    return next(beside, readers[-1])


def _copy(weight: StoredWeight, item: float, sizes: Sizes) -> Alloc:
    nbytes = item * sizes.elements(weight.updated)
    padded = nbytes * sizes.padding(weight.updated)
    return Alloc(f"{weight.name}/cast", nbytes, "cast weights", padded)


def _without(whole: Alloc, copies: Sequence[Alloc]) -> Alloc:
    """Return the allocation of what is cast beside `copies`."""
    return replace(
        whole,
        bytes=whole.bytes - sum(one.bytes for one in copies),
        padded=whole.padded - sum(one.padded for one in copies),
    )


def _freeing(body: tuple[Op, ...], frees: tuple[str, ...]) -> tuple[Op, ...]:
    """Return the body of a loop, of which the last operation that is no loop frees tensors."""
    last, op = [(i, op) for i, op in enumerate(body) if isinstance(op, Compute | Collective)][-1]
    return (*body[:last], replace(op, frees=(*op.frees, *frees)), *body[last + 1 :])
