"""Which collectives of a body are carried out as one."""

from collections.abc import Collection

from tpusim.partition.decisions import REDUCTIONS, BodyNodes
from tpusim.partition.layout import is_across
from tpusim.partition.lowering import COMBINED, SMALL_GRADIENT
from tpusim.partition.template import Comm, Purpose
from tpusim.program import CollectiveKind, Mode


def merged_gradients(body: BodyNodes) -> frozenset[str]:
    """Gradient reductions that are merged at the end of the body.

    Small ones are, and so are the all-reduces of shards over a further axis of the slice, of
    whatever size: one of 104 MiB over `context` for a layer whose seven matrices have been
    scattered over `fsdp` (v6e 4x4, 4 x 4, libtpu 0.0.42.1). A shard that crosses slices, and is
    gathered after, goes with the reduction that left it.
    """
    merged: set[str] = set()
    left: set[str] = set()
    scattered: set[str] = set()
    for comm in body.comms:
        if comm.purpose is not Purpose.GRADIENT or not (comm.kind in REDUCTIONS or comm.asked):
            continue
        alone = comm.kind in REDUCTIONS and not is_across(comm.axes)
        small = body.bytes(comm) <= SMALL_GRADIENT
        if small if alone else not left.isdisjoint(comm.reads):
            merged.add(comm.name)
            left.update(comm.writes)
        elif alone and _is_shard(body, comm, scattered):
            merged.add(comm.name)
        if comm.kind is CollectiveKind.REDUCE_SCATTER:
            scattered.update(comm.writes)
    return frozenset(merged)


def _is_shard(body: BodyNodes, comm: Comm, scattered: Collection[str]) -> bool:
    """Whether an all-reduce sums shards of a layer, one after the other on the core."""
    waits = body.decisions.over(comm.axes)[1].reduce is not Mode.ASYNC
    alike = comm.kind is CollectiveKind.ALL_REDUCE and comm.reads[0] in scattered
    return body.looped and waits and alike


def small_all_reduces(body: BodyNodes) -> frozenset[str]:
    """All-reduces of activations that are merged with the one that follows them."""
    return frozenset(
        comm.name
        for comm in body.comms
        if comm.purpose is Purpose.ACTIVATION
        and comm.kind is CollectiveKind.ALL_REDUCE
        and body.bytes(comm) <= COMBINED
    )
