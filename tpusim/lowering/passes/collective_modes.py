"""The mode and the algorithm of each collective of a body."""

from collections.abc import Collection, Iterator

from tpusim.lowering.body_entries import CollectiveMatmul, Entry, PlannedCollective
from tpusim.lowering.collective_choice import REDUCTIONS, CollectiveChoice
from tpusim.lowering.decisions import Body
from tpusim.lowering.passes.fuse_collectives import collective_matmuls, ring_attentions
from tpusim.lowering.passes.halos import planned_permute
from tpusim.partition import CollectiveNode, ComputeNode, LoopNode, Purpose, unfused
from tpusim.program import CollectiveKind


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
    maker = body.makers.get(collective.maker)
    choice = CollectiveChoice.of(
        collective,
        maker.op if maker else None,
        beside_loop=body.has_loop,
        looped=body.looped,
        balanced=body.sharding.context.balanced,
        in_ring=maker is not None and maker.name in matmuls,
    )
    low = body.alone(collective)
    pipelined = False
    if choice.across and choice.purpose is Purpose.WEIGHT:
        written = collective.writes[0]
        further = next((c for c in body.collectives if written in c.reads), None)
        low = body.over(further.axes if further else collective.axes)
    elif choice.across and choice.purpose is Purpose.GRADIENT:
        pipelined = body.looped and choice.kind in REDUCTIONS
    return PlannedCollective((collective,), *choice.way(low), pipelined=pipelined)
