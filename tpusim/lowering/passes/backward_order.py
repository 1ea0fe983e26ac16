"""Order of the backward pass: matmuls that only the optimizer depends on come last.

In compiled steps the gradients of weights, the MLP's too, are multiplied after the backward pass
of attention where they are rings, or less is freed by them than they take, so that what they read
is held until then (12 plain models on v3 to 7x, and models with MaxText's flags on v5p and v6e).
So do they all where the products of layers are saved and attention is no kernel (12 compiled
plans on v3 to v6e that this moves, 9 nearer). Others run at once, as the head's does: of 153
compiled plans whose peak this moves, 111 are nearer to the compiler's, on each of v2 to 7x. So do
those that activations are gathered for, which frees the copies (an encoder with its embedding
dimension sharded over `tensor`, v4 2x2x4; libtpu 0.0.42.1), unless they are loops over chunks,
which come last too (four programs of `fsdp` 8 to 32 x `tensor` 2 to 16 on v5p and v6e; libtpu
0.0.42.1).
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import groupby
from re import search
from typing import TypeGuard

from tpusim.base.phase import Phase
from tpusim.graph import Attention, Convolution, Einsum, is_sequence
from tpusim.lowering.body_entries import (
    UNROLLED_RING,
    CollectiveMatmul,
    Entry,
    PlannedCollective,
    with_readers,
)
from tpusim.lowering.collective_choice import REDUCTIONS
from tpusim.lowering.collective_lowering import Lowering
from tpusim.lowering.decisions import Body, LoweringDecisions
from tpusim.lowering.observed.carried_gathers import carries_gathers, is_matmul
from tpusim.lowering.passes.fuse_collectives import matmuls_for
from tpusim.partition import (
    CollectiveNode,
    ComputeNode,
    LoopNode,
    Node,
    Purpose,
    is_across,
)
from tpusim.plan import Axes
from tpusim.program import CollectiveKind, Mode


def weight_gradients_last(nodes: Sequence[Node], body: Body) -> list[Node]:
    """Move each layer's matmuls for the gradients of weights after its other nodes.

    Those stay that are no rings and whose first operand is at least as large as their result,
    unless gradients are reduced beside the core, or products are saved and no kernel attends.
    Readers of their results follow them. Layers without attention stay as they are, and so does a
    body that gathers activations for such matmuls, unless those are loops.
    """
    gathered = {key for node in nodes if _gathers_activation(node) for key in node.writes}
    matmuls = [node for node in nodes if _multiplies_for(node, body.weights)]
    loops = gradient_rings(body)
    if not all(gathered.isdisjoint(node.reads) or node.name in loops for node in matmuls):
        return list(nodes)
    rings = gradient_rings(body, unrolled=True)
    beside_core = _reduces_beside_core(body)
    saved = body.remat.policy in ("dots", "minimal") and not any(map(_is_kernel, nodes))
    waiting = [
        node
        for node in matmuls
        if beside_core
        or saved
        or node.name in rings
        or body.ask(_is_smaller, node.reads[0], node.writes[0])
    ]
    result: list[Node] = []
    for layer in (list(group) for _, group in groupby(nodes, _layer)):
        if not any(_attends(node, body.weights) for node in layer):
            result += layer
            continue
        kept, late = with_readers(layer, {i for i, node in enumerate(layer) if node in waiting})
        result += [*kept, *late]
    return result


def gradient_rings(body: Body, unrolled: bool = False) -> set[str]:
    """Return the names of the matmuls for gradients of weights that are loops over chunks.

    unrolled: with the rings that are written out.
    """
    return {
        matmul.name
        for node in body.collectives
        if node.purpose is Purpose.GRADIENT and (unrolled or body.ask(_is_loop, node))
        for matmul in matmuls_for(body, node)
    }


def gradients_after_loop(entries: Sequence[Entry], body: Body) -> list[Entry]:
    """Move matmuls for gradients that only the optimizer depends on after the last loop.

    What it reads is then held through the loop. What reads such a gradient follows it.
    """
    last = max((i for i, entry in enumerate(entries) if isinstance(entry, LoopNode)), default=0)
    unread = _unread_before(entries[: last + 1])
    carry = _gathers_gradient(entries[last:]) and carries_gathers(body)
    matmuls = {p for p in unread if (carry and is_matmul(entries[p])) or _waits(entries[p], body)}
    kept, moved = with_readers(entries[:last], matmuls)
    return [*kept, *entries[last : last + 1], *moved, *entries[last + 1 :]]


def head_gradient_first(entries: Sequence[Entry], body: Body) -> list[Entry]:
    """Move a matmul for a gradient that runs before the layers before that for its input's.

    The gathered head is then held beside its whole gradient. On v5e 21 of the 31 compiled plans
    that this moves are nearer; on the other chips 60 of 124 would be (libtpu 0.0.42.1).
    """
    if not body.ask(_multiplies_for_weights_first):
        return list(entries)
    result = list(entries)
    last = max((i for i, entry in enumerate(entries) if isinstance(entry, LoopNode)), default=0)
    for place in sorted(_unread_before(entries[: last + 1])):
        entry = entries[place]
        at = result.index(entry)
        same = (i for i, other in enumerate(result[:at]) if _multiplies_same(other, entry))
        result.insert(next(same, at), result.pop(at))
    return result


def _multiplies_for_weights_first(decisions: LoweringDecisions) -> bool:
    return decisions.chip.generation == "v5e"


def _multiplies_same(one: Entry, other: Entry) -> bool:
    """Return True for two matmuls of their own with the same first operand."""
    both = one, other
    multiply = all(isinstance(e, ComputeNode) and isinstance(e.op, Einsum) for e in both)
    return multiply and one.reads[0] == other.reads[0]


def rings_after_layers(entries: Sequence[Entry], body: Body) -> list[Entry]:
    """Mark the rings for gradients of layers of which no loop is left: they run after all layers.

    No iteration ends there, so what only the optimizer reads comes last, and holds its operands
    until then: 23 of 23 programs of two to eight layers on v4, v5p, v6e and 7x, also beside a
    context or a tensor axis. Rings over four devices are no loops and run at once (4 of 4), and so
    do those beside which the layer before gathers its weights (v5e, 5 of 5; libtpu 0.0.42.1).
    Where tensors are offloaded, of a scan of two layers no loop is left (see `fetched_ahead`).
    """
    return [
        _placed_ring(entry, body) if isinstance(entry, CollectiveMatmul) else entry
        for entry in entries
    ]


def _placed_ring(ring: CollectiveMatmul, body: Body) -> CollectiveMatmul:
    if not body.ask(_is_loop, ring.collective):
        return ring
    reduces = ring.collective.purpose is Purpose.GRADIENT
    if body.remat.offload:
        return replace(ring, waits=reduces)
    beside = _gathers_beside(body.over(ring.collective.axes))
    backward = ring.phase is Phase.BACKWARD
    return replace(ring, waits=reduces and not beside, ahead=backward and beside)


def gathers_before_layers(entries: Sequence[Entry], body: Body) -> list[Entry]:
    """Mark the synchronous gathers of weights in the forward pass, which run before all layers.

    Nothing that they wait for comes later, and no iteration holds them back, so that the weights of
    all layers are there before the first one: fsdp beside data, and all-gathers in place of rings
    (8 of 8 programs of four and eight layers on v4, v5p and v6e; libtpu 0.0.42.1). Without a
    checkpoint they stay with their layers (4 of 4).
    """
    if body.looped:
        return [replace(e, ahead=True) if _gathers_in_turn(e) else e for e in entries]
    first = next((i for i, entry in enumerate(entries) if isinstance(entry, LoopNode)), 0)
    later = [entry for entry in entries[first:] if _gathers_in_turn(entry)]
    rest = [entry for entry in entries[first:] if entry not in later]
    return [*entries[:first], *later, *rest]


def _gathers_in_turn(entry: Entry) -> TypeGuard[PlannedCollective]:
    return (
        isinstance(entry, PlannedCollective)
        and entry.mode is Mode.SYNC
        and entry.phase is Phase.FORWARD
        and entry.collectives[0].purpose is Purpose.WEIGHT
        and entry.collectives[0].kind is CollectiveKind.ALL_GATHER
    )


def _is_loop(decisions: LoweringDecisions, collective: CollectiveNode) -> bool:
    return bool(decisions.sizes.group(collective.axes) > UNROLLED_RING)


def _gathers_beside(low: Lowering) -> bool:
    return low.twice is Mode.ASYNC and not low.gathers_at_once


def _waits(entry: Entry, body: Body) -> bool:
    """Return True for a matmul that runs after the loop, though it could run before.

    A matmul of its own runs at once if its first operand, which it frees, is at least as large as
    its result: of the head's, for which that operand is the gradient of the logits, 85 of 100 did
    so in compiled plans for v2 to v6e, and 9 of 26 otherwise. It waits where its reduction runs
    beside the core, on the SparseCore or between slices (80 of 102), and where an operand is
    gathered over a dimension of the result (6 of 9). So does a sharded result that is all-reduced,
    of which the only program seen waits (language model, data 4 x tensor 4 on v6e 4x4; libtpu
    0.0.42.1), and beside copies to the host a whole one that is all-reduced (3 of 3 on v5p and v6e;
    of others, whose shard or slice is kept, none of 6), but not with MaxText's flags (4 of 4; 10 of
    13 other heads are where this says with them, and those of 4 published configurations).

    A ring waits where the SparseCore reduces and between slices (7x: 11 of 11), where tokens are
    sharded within one sequence (9 of 13; beside other sequences of the device 10 of 13 do not),
    over axes that shard experts (8 of 12), with MaxText's flags (4 of 4), and where anything is
    offloaded (10 of 10 on v4, v5e, v5p and v6e, two to 32 layers). Of layers that are
    not scanned it waits if they save more than their inputs (3 of 3; with these alone none of 7,
    with MaxText's flags and sharded sequences too). Where the gradient of its input is summed over
    `tensor`, see `_follows_a_sum`. Others run at once: 135 of 152 on v4 to v6e.
    """
    if _reduces_beside_core(body):
        waits = isinstance(entry, ComputeNode | CollectiveMatmul)
        return waits and not _runs_beside_sum(entry, body)
    if isinstance(entry, CollectiveMatmul):
        if body.remat.unrolled:
            return body.remat.policy != "full" or bool(body.remat.save)
        if body.remat.offload:
            return True
        return (
            _shards_one_sequence(entry, body)
            or _sends_over_experts(entry, body)
            or _follows_a_sum(entry, body)
            or _is_gathered_along_result(entry.compute, body)
        )
    return isinstance(entry, ComputeNode) and (
        _is_gathered_along_result(entry, body)
        or _all_reduces(entry, body)
        or body.ask(_is_smaller, entry.reads[0], entry.writes[0])
    )


def _gathers_gradient(entries: Sequence[Entry]) -> bool:
    """Return True if what a loop, the first entry, leaves is gathered."""
    left = {key for entry in entries[:1] if isinstance(entry, LoopNode) for key in entry.writes}
    moves = [c for e in entries if isinstance(e, PlannedCollective) for c in e.collectives]
    return any(_gathers_activation(c) and not left.isdisjoint(c.reads) for c in moves)


def _runs_beside_sum(entry: Entry, body: Body) -> bool:
    """Return True for a matmul that hides the sum of the gradient of its input.

    The SparseCore of 7x sums it over `tensor`, while nothing else is there to multiply: 5 of 5
    programs on 7x 2x2x2 and 2x4x4 whose own gradient is reduced once, over 2 or 4 devices. Over
    eight and 64, and in rings, it waits (6 of 6; libtpu 0.0.42.1).
    """
    if not isinstance(entry, ComputeNode) or _is_gathered_along_result(entry, body):
        return False
    over = [c.axes for c in body.collectives if entry.writes[0] in c.reads]
    apart = any(is_across(collective.axes) for collective in body.collectives)
    if apart or len(over) != 1 or not body.ask(_is_few, over[0]):
        return False
    return _sums_for_input(entry, body)


def _follows_a_sum(ring: CollectiveMatmul, body: Body) -> bool:
    """Return True for a ring that waits though the gradient of its input is summed over `tensor`.

    With `minimal` remat they do (5 of 5 on v4, v5p and v6e; with `dots` 1 of 6, with `full` none of
    4 that gather no operand; without `tensor` 3 of 6 plans would be nearer), and so do unrolled
    ones in plain programs for v5e (5 of 5; elsewhere 1 of 10 plans would be nearer).
    """
    if not _sums_for_input(ring.compute, body):
        return False
    if body.ask(_is_loop, ring.collective):
        return body.remat.policy == "minimal"
    return body.over(ring.collective.axes).carries


def _sums_for_input(compute: ComputeNode, body: Body) -> bool:
    """Return True if the gradient of a matmul's input is summed over devices."""
    other = compute.op.name.removesuffix("/dw") + "/dx"
    summed = (c for c in body.collectives if c.purpose is Purpose.ACTIVATION)
    return any(c.kind in REDUCTIONS and c.maker == other for c in summed)


def _is_few(decisions: LoweringDecisions, axes: Axes) -> bool:
    return bool(decisions.sizes.group(axes) <= UNROLLED_RING)


def _shards_one_sequence(ring: CollectiveMatmul, body: Body) -> bool:
    """Return True if a device has a part of one sequence, and no other."""
    split = dict(ring.compute.split)
    if not any(axes and is_sequence(dim) for dim, axes in split.items()):
        return False
    batch = ring.compute.op.inputs[0].dims[0]
    return body.ask(_is_one, batch, split.get(batch, ()))


def _is_one(decisions: LoweringDecisions, dim: str, axes: Axes) -> bool:
    return bool(decisions.sizes.extent(dim, axes) <= 1)


def _sends_over_experts(ring: CollectiveMatmul, body: Body) -> bool:
    of_experts = (buffer.local.split().get("expert", ()) for buffer in body.buffers.values())
    return any(not set(axes).isdisjoint(ring.collective.axes) for axes in of_experts)


def _is_smaller(decisions: LoweringDecisions, one: str, other: str) -> bool:
    return decisions.buffer_bytes(one) < decisions.buffer_bytes(other)


def _reduces_beside_core(body: Body) -> bool:
    gradients = (c.axes for c in body.collectives if c.purpose is Purpose.GRADIENT)
    return any(is_across(axes) or body.over(axes).offloaded for axes in gradients)


def _all_reduces(compute: ComputeNode, body: Body) -> bool:
    """Return True for an all-reduced result that is sharded, or beside copies to the host."""
    sharded = any(body.buffers[compute.writes[0]].local.split().values())
    beside_copies = bool(body.remat.offload) and body.compiler.style != "maxtext"
    return (sharded or beside_copies) and any(
        c.kind is CollectiveKind.ALL_REDUCE and compute.writes[0] in c.reads
        for c in body.collectives
    )


def _is_gathered_along_result(compute: ComputeNode, body: Body) -> bool:
    result = compute.op.outputs[0].dims
    return any(
        _gathers_activation(c) and c.dim in result and not set(c.writes).isdisjoint(compute.reads)
        for c in body.collectives
    )


def _unread_before(entries: Sequence[Entry]) -> set[int]:
    """Return places of the backward pass whose results the last entry does not depend on."""
    needed: set[str] = set()
    unread: set[int] = set()
    for place, entry in reversed(list(enumerate(entries))):
        waits = place < len(entries) - 1 and not isinstance(entry, LoopNode)
        if waits and entry.phase is Phase.BACKWARD and needed.isdisjoint(entry.writes):
            unread.add(place)
        else:
            needed.update(entry.reads)
    return unread


def _layer(node: Node) -> str:
    """Return the layer of a pattern that a node belongs to; empty if a body is one layer."""
    match node:
        case ComputeNode():
            named = node.op.name
        case CollectiveNode():
            named = node.tensor
        case _:
            named = ""
    found = search(r"\w+/\d+(?=/)", named)
    return found[0] if found else ""


def _multiplies_for(node: Node, weights: Collection[str]) -> TypeGuard[ComputeNode]:
    if not (isinstance(node, ComputeNode) and isinstance(node.op, Einsum | Convolution)):
        return False
    return node.phase is Phase.BACKWARD and node.op.outputs[0].primal in weights


def _is_kernel(node: Node) -> bool:
    return isinstance(node, ComputeNode) and isinstance(node.op, Attention)


def _attends(node: Node, weights: Collection[str]) -> bool:
    """Return True for an attention kernel, or a matmul of two activations, as in attention."""
    if not isinstance(node, ComputeNode):
        return False
    if not isinstance(node.op, Einsum):
        return isinstance(node.op, Attention)
    tensors = (*node.op.inputs, *node.op.outputs)
    return all((tensor.primal or tensor.name) not in weights for tensor in tensors)


def _gathers_activation(node: Node) -> bool:
    if not isinstance(node, CollectiveNode):
        return False
    return node.kind is CollectiveKind.ALL_GATHER and node.purpose is Purpose.ACTIVATION
