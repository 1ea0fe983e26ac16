"""The mode and the algorithm of each collective that runs on its own."""

from collections.abc import Collection

from tpusim.graph import Attention, Einsum
from tpusim.partition.decisions import REDUCTIONS, BodyNodes
from tpusim.partition.layout import is_across
from tpusim.partition.lowering import Lowering
from tpusim.partition.passes import Planned
from tpusim.partition.scope import TOKENS
from tpusim.partition.template import Comm, Purpose
from tpusim.program import CollectiveKind, Mode

_MLP = frozenset({"mlp", "expert_mlp"})
"""The dimensions of which the weights of an MLP have one."""


def planned(body: BodyNodes, comm: Comm, rings: Collection[str]) -> Planned:
    """A collective on its own: its mode and algorithm."""
    _, low = body.decisions.over(comm.axes)
    if is_across(comm.axes):
        return _planned_across(body, comm, low)
    match comm.purpose:
        case Purpose.WEIGHT if comm.kind is CollectiveKind.ALL_GATHER:
            mode = low.twice if low.gather is Mode.RING else low.gather
            waits = body.has_loop and low.outside_sync
            waits |= low.only_mlp and _MLP.isdisjoint(comm.payload.dims)
            return Planned((comm,), Mode.SYNC if waits else mode, low.gather_algorithm)
        case Purpose.GRADIENT if comm.kind in REDUCTIONS:
            mode = Mode.SYNC if low.reduce is Mode.RING else low.reduce
            return Planned((comm,), mode, _reduction(body, comm, low, rings))
        case Purpose.GRADIENT if comm.kind is CollectiveKind.ALL_GATHER and comm.asked:
            mode = Mode.SYNC if low.reduce is Mode.RING else low.reduce
            return Planned((comm,), mode, low.gather_algorithm)
    return Planned((comm,), Mode.SYNC, low.keys_algorithm if _sums_keys(body, comm) else "")


def _sums_keys(body: BodyNodes, comm: Comm) -> bool:
    """Whether it sums, and parts, the gradients of keys or values that a kernel gathered.

    A kernel runs in a `shard_map`, whose transpose of an operand that all devices have whole is
    a `psum`: an all-reduce, of which each device then takes its part.
    """
    maker = body.makers.get(comm.maker)
    scatters = comm.kind is CollectiveKind.REDUCE_SCATTER and comm.dim in TOKENS
    return scatters and maker is not None and isinstance(maker.op, Attention)


def _planned_across(body: BodyNodes, comm: Comm, low: Lowering) -> Planned:
    """A collective across slices, by no algorithm but its own.

    A gather of weights runs as the one that takes its result further within the slice. The
    gradients of a layer cross beside the next layer's backward pass; those outside of the loop
    are waited for (compiled programs for two slices of v5e 4x4, libtpu 0.0.42.1).
    """
    match comm.purpose:
        case Purpose.WEIGHT if comm.kind is CollectiveKind.ALL_GATHER:
            further = next((c for c in body.comms if comm.writes[0] in c.reads), comm)
            low = body.decisions.over(further.axes)[1]
            waits = low.gather is Mode.RING or (body.has_loop and low.outside_sync)
            return Planned((comm,), Mode.SYNC if waits else low.gather)
        case Purpose.GRADIENT if comm.kind in REDUCTIONS:
            waits = not body.looped and low.reduce is not Mode.ASYNC
            return Planned((comm,), Mode.SYNC if waits else Mode.ASYNC, behind=body.looped)
    return Planned((comm,), Mode.SYNC)


def _reduction(body: BodyNodes, comm: Comm, low: Lowering, rings: Collection[str]) -> str:
    """A gradient that a ring computes is not fused with its scatter: all-reduce, then slice.

    Nor is one that a grouped kernel makes where products would be rings (megablox over 16 chips
    of v6e 4x4, libtpu 0.0.42.1; over 4 of them it is).
    """
    if comm.kind is CollectiveKind.ALL_REDUCE:
        return ""
    maker = body.makers.get(comm.maker)
    if maker is None:
        return low.reduce_algorithm
    if low.major_algorithm and comm.dim != comm.payload.dims[-1]:
        return low.major_algorithm
    kernel = isinstance(maker.op, Einsum) and maker.op.ragged and low.reduce is Mode.RING
    return "all-reduce" if kernel or maker.name in rings else low.reduce_algorithm
