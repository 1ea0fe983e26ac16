"""Order of the backward pass: matmuls that only the optimizer depends on come last.

In compiled steps the gradients of weights, the MLP's too, are multiplied after the backward pass
of attention where they are rings, or less is freed by them than they take, so that what they read
is held until then (12 plain models on v3 to 7x, and models with MaxText's flags on v5p and v6e).
So do they all where the products of layers are saved (40 of 43 programs with a kernel on v2 to 7x;
without one, of 12 compiled plans on v3 to v6e that this moves, 9 are nearer). Others run at once,
as the head's does: of 153 compiled plans whose peak this moves, 111 are nearer to the compiler's,
on each of v2 to 7x. So do those that activations are gathered for, which frees the copies (an
encoder with its embedding dimension sharded over `tensor`, v4 2x2x4; libtpu 0.0.42.1), unless they
are loops over chunks, which come last too (four programs of `fsdp` 8 to 32 x `tensor` 2 to 16 on
v5p and v6e; libtpu 0.0.42.1).
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import chain, groupby
from re import search
from typing import TypeGuard

from tpusim.base.phase import Phase
from tpusim.base.same import Same
from tpusim.graph import Attention, Convolution, Einsum, plain_dim
from tpusim.lowering.body_entries import (
    CollectiveMatmul,
    Entry,
    PlannedCollective,
    with_readers,
)
from tpusim.lowering.collective_choice import gathers_activation
from tpusim.lowering.collective_lowering import Lowering
from tpusim.lowering.decisions import Body, LoweringDecisions
from tpusim.lowering.layer_peak import holds_at_most
from tpusim.lowering.observed.carried_gathers import carries_gathers, is_matmul
from tpusim.lowering.passes.fuse_collectives import matmuls_for
from tpusim.lowering.passes.moved_inputs import (
    SAVES_PRODUCTS,
    follows_a_sum,
    gathers_gradient,
    has_kernel,
    is_added_to,
    is_gathered_along_result,
    is_loop,
    may_be_ring,
    runs_beside_sum,
    shards_one_sequence,
    with_gathers,
)
from tpusim.partition import (
    CollectiveNode,
    ComputeNode,
    LoopNode,
    Node,
    Purpose,
    is_across,
)
from tpusim.program import CollectiveKind, Mode


def weight_gradients_last(nodes: Sequence[Node], body: Body) -> list[Node]:
    """Move each layer's matmuls for the gradients of weights after its other nodes.

    Those stay that are no rings and whose first operand is at least as large as their result,
    unless gradients are reduced beside the core, or products are saved. Readers of their results
    follow them. Layers without attention stay as they are, and so does a body that gathers
    activations for such matmuls, unless those are loops, or products are saved. With saved products
    or a kernel, a gather that only such matmuls read waits with them.
    """
    gathered = {key for node in nodes if gathers_activation(node) for key in node.writes}
    matmuls = [node for node in nodes if _multiplies_for(node, body.weights)]
    saved = body.remat.policy in SAVES_PRODUCTS
    loops = gradient_rings(body)
    free = (gathered.isdisjoint(node.reads) or node.name in loops for node in matmuls)
    if not saved and not all(free):
        return list(nodes)
    rings = gradient_rings(body, unrolled=True)
    beside_core = _reduces_beside_core(body)
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
        result += with_gathers(kept, late) if saved or has_kernel(nodes) else [*kept, *late]
    return result


def gradient_rings(body: Body, unrolled: bool = False) -> set[str]:
    """Return the names of the matmuls for gradients of weights that are loops over chunks.

    unrolled: with the rings that are written out.
    """
    return {
        matmul.name
        for node in body.collectives
        if node.purpose is Purpose.GRADIENT and (unrolled or body.ask(is_loop, node))
        for matmul in matmuls_for(body, node)
    }


def gradients_after_loop(entries: Sequence[Entry], body: Body) -> list[Entry]:
    """Move matmuls for gradients that only the optimizer depends on after the last loop.

    What it reads is then held through the loop. What reads such a gradient follows it. A ring waits
    for those of weights before the layers, whose gradients come after them (heads of a Conformer,
    whose spectrogram enters by a projection: 5 of 5 programs on v4 to v6e, libtpu 0.0.42.1). One
    that waits though it frees more than it makes comes last, after the gradient of the embedding (7
    of 8 programs on v2 to v6e; libtpu 0.0.42.1).
    """
    last = max((i for i, entry in enumerate(entries) if isinstance(entry, LoopNode)), default=0)
    unread = _unread_before(entries[: last + 1])
    carry = gathers_gradient(entries[last:], body) and carries_gathers(body)
    joins = any(map(_reduces_in_ring, entries[last + 1 :]))
    matmuls = {
        place
        for place in unread
        if _waits(entries[place], body)
        or (joins and _reduces_in_ring(entries[place]))
        or (carry and is_matmul(entries[place]))
    }
    kept, moved = with_readers(entries[:last], matmuls)
    after = [*moved, *entries[last + 1 :]]
    idle = {place for place, entry in enumerate(moved) if _waits_for_nothing(entry, body)}
    return [*kept, *entries[last : last + 1], *chain(*with_readers(after, idle))]


def _reduces_in_ring(entry: Entry) -> bool:
    """Return True for a ring for the gradient of a weight."""
    return isinstance(entry, CollectiveMatmul) and entry.collective.purpose is Purpose.GRADIENT


def head_gradient_first(entries: Sequence[Entry], body: Body) -> list[Entry]:
    """Move a matmul for a gradient that runs before the layers before that for its input's.

    The gathered head is then held beside its whole gradient. On v5e 21 of the 31 compiled plans
    that this moves are nearer; on the other chips 60 of 124 would be (libtpu 0.0.42.1).
    """
    if body.looped:
        return _rings_of_head_first(entries, body)
    if not body.ask(_multiplies_for_weights_first):
        return list(entries)
    result = list(entries)
    last = max((i for i, entry in enumerate(entries) if isinstance(entry, LoopNode)), default=0)
    for place in sorted(_unread_before(entries[: last + 1])):
        if _is_own_matmul(entries[place]):
            _move_before_input(result, entries[place])
    return result


def _rings_of_head_first(entries: Sequence[Entry], body: Body) -> list[Entry]:
    """Return the entries of a loop with rings for the head's gradient before that of its input.

    So they run in tiles of a loss, where the gathered head is held beside them (tied tables of 262k
    words in 2 to 16 tiles on v4, v5e and v5p).
    """
    result = list(entries)
    for ring in entries:
        if not (isinstance(ring, CollectiveMatmul) and not ring.gathers and _is_of_words(ring)):
            continue
        if not body.ask(is_loop, ring.collective):
            continue
        _move_before_input(result, ring)
    return result


def _move_before_input(entries: list[Entry], matmul: Entry) -> None:
    """Move a matmul for a gradient before the first one of its own with the same first operand."""
    at = entries.index(matmul)
    same = (i for i, one in enumerate(entries[:at]) if _reads_first(one, matmul.reads[0]))
    entries.insert(next(same, at), entries.pop(at))


def _is_of_words(ring: CollectiveMatmul) -> bool:
    return "vocab" in map(plain_dim, ring.compute.op.outputs[0].dims)


def _reads_first(entry: Entry, key: str) -> bool:
    return _is_own_matmul(entry) and entry.reads[0] == key


def _is_own_matmul(entry: Entry) -> bool:
    return isinstance(entry, ComputeNode) and isinstance(entry.op, Einsum)


def _multiplies_for_weights_first(decisions: LoweringDecisions) -> bool:
    return decisions.chip.generation == "v5e"


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
    if not body.ask(is_loop, ring.collective):
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


def _gathers_beside(low: Lowering) -> bool:
    return low.twice is Mode.ASYNC and not low.gathers_at_once


def _waits(entry: Entry, body: Body) -> bool:
    """Return True for a matmul that runs after the loop, though it could run before.

    A matmul of its own runs at once if its first operand, which it frees, is at least as large as
    its result: of the head's, for which that operand is the gradient of the logits, 85 of 100 did
    so in compiled plans for v2 to v6e, and 9 of 26 otherwise. It waits where its reduction runs
    beside the core, on the SparseCore or between slices (80 of 102), and where an operand is
    gathered over a dimension of the result, which is summed over four devices or more, as many as
    make a ring (4 of 4 with MaxText's flags; over fewer none of 4 on v4, v5p and v6e). Beside
    copies to the host, so does a whole one that is all-reduced (3 of 3 on v5p and v6e; of others,
    whose shard or slice is kept, none of 6), but not with MaxText's flags (4 of 4; 10 of 13 other
    heads are where this says with them, and those of 4 published configurations). A shard that is
    all-reduced does not wait (6 of 7: data 4 x tensor 4 on v4, v5p and v6e; libtpu 0.0.42.1).

    A ring waits where the SparseCore reduces and between slices (7x: 11 of 11), where tokens are
    sharded within one sequence of which a device has two tokens and more for each column of the
    embedding (12 of 14 on v4, v5p and v6e; of 1.75 and fewer none of 8, and beside other sequences
    of the device 10 of 13 do not), over axes that shard experts (18 of 22, but none of 6 on v4),
    and where anything is offloaded (10 of 10 on v4, v5e, v5p and v6e, two to 32 layers). Of layers
    that are not scanned it waits if they save more than their inputs (3 of 3; with these alone none
    of 7, with MaxText's flags and sharded sequences too). Where the gradient of its input is summed
    over `tensor`, see `follows_a_sum`. Others run at once: 135 of 152 on v4 to v6e, and 9 of 13
    with MaxText's flags.
    """
    if _reduces_beside_core(body):
        return isinstance(entry, CollectiveMatmul) or (
            isinstance(entry, ComputeNode)
            and not is_added_to(entry, body)
            and not runs_beside_sum(entry, body)
        )
    if isinstance(entry, CollectiveMatmul):
        if body.remat.unrolled:
            return body.remat.policy != "full" or bool(body.remat.save)
        if body.remat.offload:
            return True
        return (
            shards_one_sequence(entry, body)
            or _sends_over_experts(entry, body)
            or follows_a_sum(entry, body)
            or is_gathered_along_result(entry.compute, body)
        )
    return isinstance(entry, ComputeNode) and (
        (is_gathered_along_result(entry, body) and may_be_ring(entry, body))
        or _all_reduces_beside_copies(entry, body)
        or _is_all_reduced_head(entry, body)
        or body.ask(_is_smaller, entry.reads[0], entry.writes[0])
        or _waits_for_nothing(entry, body)
    )


def _is_all_reduced_head(entry: ComputeNode, body: Body) -> bool:
    """Return True for a matmul of MaxText's whose result, or its shard, is all-reduced.

    It waits in 5 of 5 of MaxText's own programs over `data` (32k to 65k words on v4, v5p and v6e),
    beside `fsdp` too, and in the trace of one that ran on v6e; over `fsdp` alone on v5p, where it
    is scattered, it does not (0.2.4 and 0.2.5; libtpu 0.0.42.1 and 0.0.52). Nor does it beside
    copies to the host, as a tied table (2 of 2 plans with its flags on v5e), or where weights are
    cast once a step, before the layers.
    """
    weight = entry.op.outputs[0].primal
    terms = [e for e in body.computes if weight in {tensor.primal for tensor in e.op.outputs}]
    once = body.remat.scan_layers and body.numerics.of("grad") == body.numerics.compute
    if body.compiler.style != "maxtext" or once or body.remat.offload or len(terms) > 1:
        return False
    scattered = {
        key
        for c in body.collectives
        if c.kind is CollectiveKind.REDUCE_SCATTER and entry.writes[0] in c.reads
        for key in c.writes
    }
    return any(_is_all_reduced(key, body) for key in (entry.writes[0], *scattered))


def _waits_for_nothing(entry: Entry, body: Body) -> bool:
    """Return True if layers hold no more than the gathered weight that is gone when they begin.

    What a matmul for a gradient reads is then held through them without a higher peak. So the head
    waits in 7 of 8 compiled plans over `fsdp`, `data` or both whose layers hold 0.24 to 0.98 of the
    gathered head, and in none of 20 whose layers hold 1.3 to 26 times as much (v2 to v6e; libtpu
    0.0.42.1). It does not on v5e, where it is multiplied first, beside `tensor`, where it is the
    embedding, and where its reduction runs beside the core.
    """
    if not (isinstance(entry, ComputeNode) and isinstance(entry.op, Einsum)):
        return False
    weight, dims = entry.op.outputs[0].primal, entry.op.outputs[0].dims
    layers = [node.body for node in body.nodes if isinstance(node, LoopNode)]
    gathers = (c for c in body.collectives if c.purpose is Purpose.WEIGHT and c.tensor == weight)
    terms = [e for e in body.computes if weight in {tensor.primal for tensor in e.op.outputs}]
    split = any(axes for dim, axes in entry.split if dim in dims)
    if not any(gathers) or len(terms) > 1 or split or body.remat.unrolled:
        return False
    if _reduces_beside_core(body) or body.ask(_multiplies_for_weights_first):
        return False
    smaller = body.ask(_is_smaller, entry.reads[0], entry.writes[0])
    return not smaller and body.ask(holds_at_most, Same(layers[-1]), entry.writes[0])


def _sends_over_experts(ring: CollectiveMatmul, body: Body) -> bool:
    """Return True for a ring over axes that shard experts, on a chip where it waits for layers."""
    if body.ask(_is_v4):
        return False
    of_experts = (buffer.local.split().get("expert", ()) for buffer in body.buffers.values())
    return any(not set(axes).isdisjoint(ring.collective.axes) for axes in of_experts)


def _is_v4(decisions: LoweringDecisions) -> bool:
    return decisions.chip.generation == "v4"


def _is_smaller(decisions: LoweringDecisions, one: str, other: str) -> bool:
    return decisions.buffer_bytes(one) < decisions.buffer_bytes(other)


def _reduces_beside_core(body: Body) -> bool:
    gradients = (c.axes for c in body.collectives if c.purpose is Purpose.GRADIENT)
    return any(is_across(axes) or body.over(axes).offloaded for axes in gradients)


def _all_reduces_beside_copies(compute: ComputeNode, body: Body) -> bool:
    """Return True for an all-reduced result beside copies to the host."""
    beside_copies = bool(body.remat.offload) and body.compiler.style != "maxtext"
    return beside_copies and _is_all_reduced(compute.writes[0], body)


def _is_all_reduced(key: str, body: Body) -> bool:
    return any(c.kind is CollectiveKind.ALL_REDUCE and key in c.reads for c in body.collectives)


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


def _attends(node: Node, weights: Collection[str]) -> bool:
    """Return True for an attention kernel, or a matmul of two activations, as in attention."""
    if not isinstance(node, ComputeNode):
        return False
    if not isinstance(node.op, Einsum):
        return isinstance(node.op, Attention)
    tensors = (*node.op.inputs, *node.op.outputs)
    return all((tensor.primal or tensor.name) not in weights for tensor in tensors)
