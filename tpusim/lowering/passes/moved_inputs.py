"""Matmuls for gradients of weights beside what moves their operands and the gradients of these."""

from collections.abc import Sequence

from tpusim.graph import Attention, is_sequence, plain_dim
from tpusim.lowering.body_entries import (
    UNROLLED_RING,
    CollectiveMatmul,
    Entry,
    PlannedCollective,
)
from tpusim.lowering.collective_choice import REDUCTIONS, gathers_activation
from tpusim.lowering.decisions import Body, LoweringDecisions, is_unrolled
from tpusim.partition import CollectiveNode, ComputeNode, LoopNode, Node, Purpose, is_across
from tpusim.plan import Axes
from tpusim.program import CollectiveKind

SAVES_PRODUCTS = ("dots", "minimal")
"""Remat policies that save products."""


def runs_beside_sum(entry: Entry, body: Body) -> bool:
    """Return True for a matmul that hides the sum of the gradient of its input.

    The SparseCore of 7x sums it over `tensor`, while nothing else is there to multiply: 5 of 5
    programs on 7x 2x2x2 and 2x4x4 whose own gradient is reduced once, over 2 or 4 devices. Over
    eight and 64, and in rings, it waits (6 of 6; libtpu 0.0.42.1).
    """
    if not isinstance(entry, ComputeNode) or is_gathered_along_result(entry, body):
        return False
    over = [c.axes for c in body.collectives if entry.writes[0] in c.reads]
    apart = any(is_across(collective.axes) for collective in body.collectives)
    if apart or len(over) != 1 or not body.ask(is_unrolled, over[0]):
        return False
    return _sums_for_input(entry, body)


def follows_a_sum(ring: CollectiveMatmul, body: Body) -> bool:
    """Return True for a ring that waits though the gradient of its input is summed over `tensor`.

    With `minimal` remat they do (5 of 5 on v4, v5p and v6e; with `dots` 1 of 6, with `full` none of
    4 that gather no operand; without `tensor` 3 of 6 plans would be nearer), and so do unrolled
    ones in plain programs for v5e (5 of 5; elsewhere 1 of 10 plans would be nearer).
    """
    if not _sums_for_input(ring.compute, body):
        return False
    if body.ask(is_loop, ring.collective):
        return body.remat.policy == "minimal"
    return body.over(ring.collective.axes).carries


def _sums_for_input(compute: ComputeNode, body: Body) -> bool:
    """Return True if the gradient of a matmul's input is summed over devices."""
    other = compute.op.name.removesuffix("/dw") + "/dx"
    summed = (c for c in body.collectives if c.purpose is Purpose.ACTIVATION)
    return any(c.kind in REDUCTIONS and c.maker == other for c in summed)


def gathers_gradient(entries: Sequence[Entry], body: Body) -> bool:
    """Return True if what a loop, the first entry, leaves is gathered beside the head's gradient.

    Columns are (5 of 5 programs on v5e). Tokens are not where products are saved (none of 3 with
    `dots`; with a full checkpoint 1 of 2), nor where no activation is summed (none of 1: `data` and
    `fsdp` with a vocabulary of 262k; libtpu 0.0.42.1).
    """
    summed = (c for c in body.collectives if c.purpose is Purpose.ACTIVATION)
    tokens = any(c.kind in REDUCTIONS for c in summed)
    tokens = tokens and body.remat.policy not in SAVES_PRODUCTS
    left = {key for entry in entries[:1] if isinstance(entry, LoopNode) for key in entry.writes}
    moves = [c for e in entries if isinstance(e, PlannedCollective) for c in e.collectives]
    beside = (c for c in moves if tokens or plain_dim(c.dim) == "embed")
    return any(gathers_activation(c) and not left.isdisjoint(c.reads) for c in beside)


def is_loop(decisions: LoweringDecisions, collective: CollectiveNode) -> bool:
    """Return True if a ring over the devices of a collective is a loop, and not written out."""
    return not is_unrolled(decisions, collective.axes)


def is_gathered_along_result(compute: ComputeNode, body: Body) -> bool:
    """Return True if an operand is gathered over a dimension of the result."""
    result = compute.op.outputs[0].dims
    return any(
        gathers_activation(c) and c.dim in result and not set(c.writes).isdisjoint(compute.reads)
        for c in body.collectives
    )


def may_be_ring(compute: ComputeNode, body: Body) -> bool:
    """Return True if a result is reduced over as many devices as the shortest ring has."""
    over = [c.axes for c in body.collectives if compute.writes[0] in c.reads]
    return any(body.ask(_makes_ring, axes) for axes in over)


def _makes_ring(decisions: LoweringDecisions, axes: Axes) -> bool:
    return bool(decisions.sizes.group(axes) >= UNROLLED_RING)


def with_gathers(kept: Sequence[Node], late: Sequence[Node]) -> list[Node]:
    """Return nodes with the late ones last, each after the gathers that it is the first to read.

    Of saved products the MLP's input is computed again for its weights' gradients alone, so it is
    gathered after attention's backward pass (6 of 6 programs with `dots` and `minimal` on v4 and
    v5p, sharded by `embed` or by tokens). Beside a kernel, so are the copies of attention's input
    for the gradients of Q, K and V, one after the other (7 of 7 programs with a full checkpoint on
    v4, v5p and v6e); without one, for rings, all at once before (2 of 2; libtpu 0.0.42.1).
    """
    early = {key for node in kept for key in node.reads}
    moved = [n for n in kept if gathers_activation(n) and early.isdisjoint(n.writes)]
    result = [node for node in kept if node not in moved]
    for node in late:
        result += [one for one in moved if not set(one.writes).isdisjoint(node.reads)]
        moved = [one for one in moved if one not in result]
        result.append(node)
    return [*result, *moved]


def has_kernel(nodes: Sequence[Node]) -> bool:
    """Return True if attention is a kernel in some node."""
    return any(map(is_kernel, nodes))


def is_kernel(node: Node) -> bool:
    """Return True for an attention kernel."""
    return isinstance(node, ComputeNode) and isinstance(node.op, Attention)


def shards_one_sequence(ring: CollectiveMatmul, body: Body) -> bool:
    """Return True if a device has a long part of one sequence, and no other.

    It is long where the gradient of the logits is as large as the gathered head and its whole
    gradient together: where it has twice as many tokens as the embedding has columns.
    """
    split = dict(ring.compute.split)
    if not any(axes and is_sequence(dim) for dim, axes in split.items()):
        return False
    batch = ring.compute.op.inputs[0].dims[0]
    one = body.ask(_is_one, batch, split.get(batch, ()))
    return one and body.ask(_is_twice, ring.compute.reads[0], ring.compute.writes[0])


def _is_twice(decisions: LoweringDecisions, one: str, other: str) -> bool:
    return decisions.buffer_bytes(one) >= 2 * decisions.buffer_bytes(other)


def _is_one(decisions: LoweringDecisions, dim: str, axes: Axes) -> bool:
    return bool(decisions.sizes.extent(dim, axes) <= 1)


def is_added_to(compute: ComputeNode, body: Body) -> bool:
    """Return True if others are added to its result once that is all-reduced."""
    reduced = {
        key
        for c in body.collectives
        if c.kind is CollectiveKind.ALL_REDUCE and compute.writes[0] in c.reads
        for key in c.writes
    }
    return any(not reduced.isdisjoint(other.reads) for other in body.computes)
