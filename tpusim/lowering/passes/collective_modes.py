"""The mode and the algorithm of each collective of a body."""

from collections.abc import Collection, Iterator

from tpusim.graph import Attention, Einsum, is_sequence
from tpusim.lowering.body_entries import CollectiveMatmul, Entry, PlannedCollective
from tpusim.lowering.collective_lowering import Lowering
from tpusim.lowering.decisions import REDUCTIONS, Body
from tpusim.lowering.passes.fuse_collectives import collective_matmuls, ring_attentions
from tpusim.lowering.passes.halos import planned_permute
from tpusim.partition import (
    CollectiveNode,
    ComputeNode,
    LoopNode,
    Purpose,
    is_across,
    unfused,
)
from tpusim.program import CollectiveKind, Mode

_MLP = frozenset({"mlp", "expert_mlp"})
"""The dimensions of which the weights of an MLP have one."""


def choose_modes(body: Body) -> list[Entry]:
    """Return the entries of a body: collectives in their mode, or fused with their matmul."""
    return list(_entries(body))


def _entries(body: Body) -> Iterator[Entry]:
    matmuls, attentions = collective_matmuls(body), ring_attentions(body)
    fused = {collective.name for collective in matmuls.values()}
    fused |= {c.name for ring in attentions.values() for c in (*ring.gathers, *ring.scatters)}
    for node in body.nodes:
        match node:
            case CollectiveNode():
                if node.name not in fused:
                    yield _planned(body, node, matmuls)
            case ComputeNode() if node.name in attentions:
                yield attentions[node.name]
            case ComputeNode():
                yield from _matmul(body, node, matmuls.get(node.name))
            case LoopNode():
                yield node


def _matmul(
    body: Body, compute: ComputeNode, collective: CollectiveNode | None
) -> tuple[Entry, ...]:
    """Return an operation, fused with its collective if any; its epilogue then follows."""
    if collective is None:
        return (compute,)
    mode = body.permutes
    if body.over(collective.axes).fuses_epilogue:
        return (CollectiveMatmul(compute, collective, mode),)
    matmul, *groups = unfused(compute)
    return (CollectiveMatmul(matmul, collective, mode), *groups)


def _planned(body: Body, collective: CollectiveNode, matmuls: Collection[str]) -> PlannedCollective:
    """Return a collective that runs on its own, with its mode and algorithm."""
    if collective.kind is CollectiveKind.PERMUTE:
        return planned_permute(collective)
    low = body.alone(collective)
    if is_across(collective.axes):
        return _planned_across(body, collective, low)
    mode, algorithm = _mode_and_algorithm(body, collective, low, matmuls)
    return PlannedCollective((collective,), mode, algorithm)


def _mode_and_algorithm(
    body: Body, collective: CollectiveNode, low: Lowering, matmuls: Collection[str]
) -> tuple[Mode, str]:
    reduce = Mode.SYNC if low.reduce is Mode.RING else low.reduce
    match collective.purpose:
        case Purpose.WEIGHT if collective.kind is CollectiveKind.ALL_GATHER:
            mode = low.twice if low.gather is Mode.RING else low.gather
            waits = body.has_loop and not low.overlap.outside_layers
            waits |= low.only_mlp and _MLP.isdisjoint(collective.payload.dims)
            return Mode.SYNC if waits else mode, low.gather_algorithm
        case Purpose.GRADIENT if collective.kind in REDUCTIONS:
            return reduce, _reduction(body, collective, low, matmuls)
        case Purpose.GRADIENT if collective.kind is CollectiveKind.ALL_GATHER and collective.asked:
            return reduce, low.gather_algorithm
    algorithm = low.keys_algorithm if _sums_keys(body, collective) else ""
    return Mode.ASYNC if _on_sparsecore(collective, low) else Mode.SYNC, algorithm


def _on_sparsecore(collective: CollectiveNode, low: Lowering) -> bool:
    """Return True if the SparseCore runs a collective that is none of a layer's weights.

    On 7x it gathers, scatters and reduces activations, tables and the head as well, and exchanges
    nothing (47 compiled plans, 99.9 % of whose bytes follow this; libtpu 0.0.42.1).
    """
    return low.offloaded and collective.kind is not CollectiveKind.ALL_TO_ALL


def _sums_keys(body: Body, collective: CollectiveNode) -> bool:
    """Return True if it sums and scatters the gradients of keys or values gathered for a kernel.

    A kernel runs in a `shard_map`, whose transpose of an operand that all devices have whole is
    a `psum`: an all-reduce, of which each device then takes its part.
    """
    maker = body.makers.get(collective.maker)
    scatters = collective.kind is CollectiveKind.REDUCE_SCATTER and is_sequence(collective.dim)
    return scatters and maker is not None and isinstance(maker.op, Attention)


def _planned_across(body: Body, collective: CollectiveNode, low: Lowering) -> PlannedCollective:
    """Return a collective across slices, which have one algorithm.

    A gather of weights runs as the one that gathers its result further within the slice. The
    gradients of a layer cross beside the next layer's backward pass; those outside of the loop are
    synchronous (compiled programs for two slices of v5e 4x4, libtpu 0.0.42.1).
    """
    match collective.purpose:
        case Purpose.WEIGHT if collective.kind is CollectiveKind.ALL_GATHER:
            written = collective.writes[0]
            further = next((c for c in body.collectives if written in c.reads), collective)
            low = body.over(further.axes)
            waits = low.gather is Mode.RING
            waits |= body.has_loop and not low.overlap.outside_layers
            return PlannedCollective((collective,), Mode.SYNC if waits else low.gather)
        case Purpose.GRADIENT if collective.kind in REDUCTIONS:
            waits = not body.looped and low.reduce is not Mode.ASYNC
            mode = Mode.SYNC if waits else Mode.ASYNC
            return PlannedCollective((collective,), mode, pipelined=body.looped)
    return PlannedCollective((collective,), Mode.SYNC)


def _reduction(
    body: Body, collective: CollectiveNode, low: Lowering, matmuls: Collection[str]
) -> str:
    """Return the algorithm of a gradient reduction.

    A gradient that a collective matmul computes is not fused with its scatter: all-reduce, then
    slice. Nor is one that a grouped matmul computes where other matmuls would be collective ones
    (megablox over 16 chips of v6e 4x4, libtpu 0.0.42.1; over 4 of them it is).
    """
    if collective.kind is CollectiveKind.ALL_REDUCE:
        return ""
    maker = body.makers.get(collective.maker)
    if maker is None:
        return low.reduce_algorithm
    if low.major_algorithm and collective.dim != collective.payload.dims[-1]:
        return low.major_algorithm
    grouped = isinstance(maker.op, Einsum) and maker.op.ragged and low.reduce is Mode.RING
    return "all-reduce" if grouped or maker.name in matmuls else low.reduce_algorithm
