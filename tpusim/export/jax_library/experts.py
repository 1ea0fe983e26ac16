"""Experts whose tokens are sorted, and not chosen by a mask.

Rows are token copies, one for each choice of a token, and
those of one expert follow one another. A device's buffer may have more rows than were sent to it;
what the rest of them holds is never read.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas.ops.tpu.megablox import gmm
from jax.sharding import PartitionSpec as P

from tpusim.export.jax_library.layers import INTERPRET, Array, axes_of, block_of, shards, top_k


def top_k_of_experts(
    logits: Array, choices: int, experts: int
) -> tuple[tuple[Array, Array], Array]:
    """Return what `top_k` does, and the weight of each token for each expert, [expert, batch, seq].

    Experts that a token has not chosen have weight 0.
    """
    weights, chosen = top_k(logits, choices)
    hit = jax.nn.one_hot(chosen, experts, dtype=weights.dtype)
    return (weights, chosen), jnp.einsum("bsk,bskx->xbs", weights, hit)


def take_rows(x: Array, there: Array, back: Array, mode: str = "clip") -> Array:
    """Return the rows `there` of x; of mode "fill", zeros for numbers past its end.

    back: for each row of x, where it is in the result; so gradients are picked too, not scattered.
    """

    @jax.custom_vjp  # type: ignore[untyped-decorator]
    def take(x: Array, there: Array, back: Array) -> Array:
        return x.at[there].get(mode=mode, fill_value=0)

    def forward(x: Array, there: Array, back: Array) -> tuple[Array, Array]:
        return take(x, there, back), back

    def backward(back: Array, grad: Array) -> tuple[Array, None, None]:
        return grad.at[back].get(mode=mode, fill_value=0), None, None

    take.defvjp(forward, backward)
    return take(x, there, back)


def reorder(x: Array, order: Array) -> Array:
    """Return the rows of x in another order."""
    return take_rows(x, order, jnp.argsort(order))


def restore(x: Array, order: Array) -> Array:
    """Return the rows that `reorder` put into an order as they were before."""
    return take_rows(x, jnp.argsort(order), order)


def weighted_sum(rows: Array, weights: Array) -> Array:
    """Return the sum of each token's rows, [batch, seq, width], by the weights of its choices."""
    rows = rows.reshape(*weights.shape, rows.shape[-1])
    made = jnp.einsum("bske,bsk->bse", rows.astype(jnp.float32), weights)
    return made.astype(rows.dtype)


def grouped_matmul(
    rows: Array,
    sizes: Array,
    weight: Array,
    rows_spec: P,
    weight_spec: P,
    made_spec: P,
    block: int = 512,
) -> Array:
    """Return rows times the weight of their expert, by a kernel that takes one group at a time.

    sizes: rows of each expert, in the order of the weight's first dimension.
    weight_spec: sharding of the weight, which is gathered over axes that neither the rows nor the
        result have in their second dimension.
    block: rows that a step of the kernel multiplies at most.
    """

    def local(rows: Array, sizes: Array, weight: Array) -> Array:
        for dim, spec in ((1, rows_spec), (2, made_spec)):
            spread = tuple(a for a in axes_of(weight_spec, dim) if a not in axes_of(spec, 1))
            weight = lax.all_gather(weight, spread, axis=dim, tiled=True) if spread else weight
        if INTERPRET:
            return lax.ragged_dot(rows, weight, sizes)[None]
        return gmm(rows, weight, sizes, rows.dtype, partial(kernel_tiles, block))[None]

    summed = axes_of(rows_spec, 1)
    parts = jax.shard_map(
        local,
        in_specs=(rows_spec, P(axes_of(rows_spec, 0)), weight_spec),
        out_specs=P(summed or None, *made_spec),
        check_vma=False,
    )(rows, sizes, weight)
    return lax.reduce_sum(parts, axes=(0,))


def kernel_tiles(block: int, rows: int, contracted: int, made: int) -> tuple[int, int, int]:
    """Return the tiles of a grouped matmul of these sizes, of at most `block` rows."""
    return block_of(rows, block), min(contracted, 1024), min(made, 1024)


def buffer_rows(rows: int, factor: float, tile: int = 128) -> int:
    """Return the rows of a buffer of `factor` times as many, in whole tiles of the kernel."""
    return -int(-rows * factor // tile) * tile


def sort_tokens(
    x: Array, gates: tuple[Array, Array], experts: int, tokens: P, rows: P, over: Any, factor: float
) -> tuple[Array, Array, tuple[Array, ...]]:
    """Return rows of tokens on the devices of their experts, the number of each expert's, and how.

    tokens, rows: shardings of x, [batch, seq, embed], and of the result, [row, embed].
    over: mesh axes that shard the experts; None if each device has all of them.
    factor: rows of a buffer over the mean; what does not fit is dropped.
    """

    def local(x: Array, chosen: Array) -> tuple[Array, Array, tuple[Array, ...]]:
        flat = chosen.ravel()
        order = jnp.argsort(flat)
        sizes = jnp.bincount(flat, length=experts)
        copies = jnp.repeat(x.reshape(-1, x.shape[-1]), chosen.shape[-1], axis=0)
        sent = reorder(copies, order)
        if over is None:
            return sent, sizes, (order,)
        room = buffer_rows(len(flat), factor)
        counts, moved = exchange_plan(sizes, room, over)
        arrived = exchange_rows(sent, room, *moved, over)
        own = counts[:, lax.axis_index(over)]
        by_expert = expert_order(own, room)
        stacked = tuple(each[None] for each in moved)
        return reorder(arrived, by_expert), jnp.sum(own, axis=0), (order, by_expert, *stacked)

    each = P(axes_of(rows, 0))
    sort = jax.shard_map(local, in_specs=(tokens, P(*tokens[:2])), out_specs=(rows, each, each))
    made: tuple[Array, Array, tuple[Array, ...]] = sort(x, gates[1])
    return made


def unsort_tokens(
    rows: Array,
    gates: tuple[Array, Array],
    moves: tuple[Array, ...],
    given: P,
    tokens: P,
    over: Any,
) -> Array:
    """Return the sum of each token's rows times its gates, where the rows are as they were moved.

    given, tokens: shardings of the rows, [row, embed], and of the result, [batch, seq, embed].
    """

    def local(rows: Array, weights: Array, moves: tuple[Array, ...]) -> Array:
        order, *exchanged = moves
        if over is not None:
            by_expert, *moved = exchanged
            starts, counts, lands = (each[0].T for each in moved)
            rows = restore(rows, by_expert)
            rows = exchange_rows(rows, len(order), lands, counts, starts, over)
        return weighted_sum(restore(rows, order), weights)

    each = P(axes_of(given, 0))
    return jax.shard_map(local, in_specs=(given, P(*tokens[:2]), each), out_specs=tokens)(
        rows, gates[0], moves
    )


def exchange_plan(sizes: Array, room: int, over: Any) -> tuple[Array, tuple[Array, Array, Array]]:
    """Return the rows that each device sends to each for each of its experts, and their moves.

    sizes: rows of this device for each of all experts, in whose order it has them.
    room: rows of a buffer; a device that is sent more gets the first ones.
    Moves are where the rows for a device start, how many they are, and where they land there, all
    [from, to].
    """
    sizes = lax.all_gather(sizes, over)
    devices = len(sizes)
    wanted = sizes.reshape(devices, devices, -1)
    arriving = wanted.swapaxes(0, 1).reshape(devices, -1)
    before = jnp.cumsum(arriving, axis=1) - arriving
    fitting = jnp.clip(room - before, 0, arriving)
    counts = fitting.reshape(devices, devices, -1).swapaxes(0, 1)
    asked, kept = jnp.sum(wanted, axis=2), jnp.sum(counts, axis=2)
    return counts, (jnp.cumsum(asked, axis=1) - asked, kept, jnp.cumsum(kept, axis=0) - kept)


def expert_order(counts: Array, room: int) -> Array:
    """Return the order that sorts arrived rows by expert; counts are by sender, then expert."""
    experts = counts.shape[1]
    ends = jnp.cumsum(counts.ravel())
    part = jnp.sum(jnp.arange(room)[:, None] >= ends, axis=1)
    return jnp.argsort(jnp.where(part < len(ends), part % experts, experts))


def exchange_rows(
    rows: Array, room: int, starts: Array, counts: Array, lands: Array, over: Any
) -> Array:
    """Return the rows that all devices send to this one, and zeros where none arrives.

    starts, counts, lands: rows from each device to each, [from, to], see `exchange_plan`.
    """
    me = lax.axis_index(over)
    if not INTERPRET:
        made = jnp.zeros_like(rows, shape=(room, rows.shape[1]))
        return lax.ragged_all_to_all(
            rows, made, starts[me], counts[me], lands[me], counts[:, me], axis_name=over
        )
    everyone = lax.all_gather(rows, over)  # a CPU has no ragged all-to-all
    place = jnp.arange(room)
    offset = place[:, None] - lands[:, me]
    theirs = (offset >= 0) & (offset < counts[:, me])
    sender = jnp.argmax(theirs, axis=1)
    found = everyone[sender, starts[sender, me] + offset[place, sender]]
    return jnp.where(jnp.any(theirs, axis=1)[:, None], found, 0)


def pick_tokens(
    x: Array,
    gates: Array,
    choices: int,
    tokens: P,
    given: P,
    rows: P,
    over: Any,
    factor: float,
    whole: bool = False,
) -> tuple[Array, Array, tuple[Array, ...]]:
    """Return rows of tokens for a device's experts, the number of each expert's, and which.

    Devices that share the experts gather their tokens, unless each has the `whole` of them.
    gates: weight of each token for each expert, [expert, batch, seq]; 0 for one that is not its.
    tokens, given, rows: shardings of x, [batch, seq, embed], of the gates, and of the rows.
    Otherwise as `sort_tokens`.
    """

    def local(x: Array, gates: Array) -> tuple[Array, Array, tuple[Array, ...]]:
        x = x if over is None or whole else lax.all_gather(x, over, tiled=True)
        experts, count = gates.shape[0], gates[0].size
        mine = (gates > 0).reshape(experts, count)
        room = buffer_rows(count * choices // shards(P(over), 0), factor)
        ends = jnp.minimum(jnp.cumsum(jnp.sum(mine, axis=1)), room)
        (picked,) = jnp.nonzero(mine.ravel(), size=room, fill_value=mine.size)
        token = jnp.where(picked < mine.size, picked % count, count)
        found = x.reshape(count, -1).at[token].get(mode="fill", fill_value=0)
        return found, jnp.diff(ends, prepend=0), (picked,)

    each = P(axes_of(rows, 0))
    pick = jax.shard_map(local, in_specs=(tokens, given), out_specs=(rows, each, each))
    made: tuple[Array, Array, tuple[Array, ...]] = pick(x, gates)
    return made


def scatter_rows(
    rows: Array,
    gates: Array,
    moves: tuple[Array, ...],
    rows_spec: P,
    given: P,
    tokens: P,
    over: Any,
    whole: bool = False,
) -> Array:
    """Return the sum of each token's rows times its gates, over the devices that share the experts.

    whole: each device gets the sums of all tokens.
    rows_spec, given, tokens: shardings of the rows, of the gates, and of the result.
    Otherwise as `unsort_tokens`.
    """

    def local(rows: Array, gates: Array, moves: tuple[Array, ...]) -> Array:
        (picked,) = moves
        weights = gates.ravel().at[picked].get(mode="fill", fill_value=0)
        wide = rows.astype(jnp.float32) * weights[:, None]
        wide = jnp.where((picked < gates.size)[:, None], wide, 0)
        made = jnp.zeros_like(wide, shape=(gates[0].size, rows.shape[1]))
        made = made.at[picked % gates[0].size].add(wide).astype(rows.dtype)
        made = made.reshape(*gates.shape[1:], rows.shape[1])
        if whole:
            return lax.psum(made, over)
        return made if over is None else lax.psum_scatter(made, over, tiled=True)

    each = P(axes_of(rows_spec, 0))
    return jax.shard_map(local, in_specs=(rows_spec, given, each), out_specs=tokens)(
        rows, gates, moves
    )


def tokens_to_slots(
    x: Array, gates: tuple[Array, Array], experts: int, slots: int, tokens: P
) -> tuple[Array, tuple[Array, Array]]:
    """Return tokens in the slots of experts, [expert, batch, slot, embed], and how they got there.

    slots: those of an expert for a sequence, or for the part of it that a device has. Those of a
    sequence's first tokens; tokens without one are dropped.
    tokens: sharding of x, [batch, seq, embed].
    """
    own = slots // shards(tokens, 1)

    def local(x: Array, chosen: Array) -> tuple[Array, tuple[Array, Array]]:
        batch, seq, choices = chosen.shape
        flat = chosen.reshape(batch, seq * choices)
        order = jnp.argsort(flat, axis=1)
        sizes = jnp.sum(jax.nn.one_hot(flat, experts, dtype=jnp.int32), axis=1)
        starts = jnp.cumsum(sizes, axis=1) - sizes
        rows = jnp.arange(batch)[:, None]

        slot = jnp.arange(own)
        at = jnp.minimum(starts[..., None] + slot, seq * choices - 1)
        there = rows[..., None] * seq * choices + order[rows[..., None], at]
        there = jnp.where(slot < sizes[..., None], there, flat.size).swapaxes(0, 1)

        rank = jnp.argsort(order, axis=1) - starts[rows, flat]
        back = (flat * batch + rows) * own + rank
        back = jnp.where(rank < own, back, experts * batch * own)

        copies = jnp.repeat(x.reshape(-1, x.shape[-1]), choices, axis=0)
        moves = there.ravel(), back.ravel()
        return take_rows(copies, *moves, "fill").reshape(experts, batch, own, -1), moves

    each = P((*axes_of(tokens, 0), *axes_of(tokens, 1)))
    fill = jax.shard_map(
        local, in_specs=(tokens, P(*tokens[:2])), out_specs=(P(None, *tokens), each)
    )
    made: tuple[Array, tuple[Array, Array]] = fill(x, gates[1])
    return made


def slots_to_tokens(
    slots: Array, gates: tuple[Array, Array], moves: tuple[Array, Array], tokens: P
) -> Array:
    """Return the sum of what is in each token's slots, times its gates.

    tokens: sharding of the result, [batch, seq, embed].
    """

    def local(slots: Array, weights: Array, moves: tuple[Array, Array]) -> Array:
        there, back = moves
        rows = take_rows(slots.reshape(-1, slots.shape[-1]), back, there, "fill")
        return weighted_sum(rows, weights)

    each = P((*axes_of(tokens, 0), *axes_of(tokens, 1)))
    return jax.shard_map(
        local, in_specs=(P(None, *tokens), P(*tokens[:2]), each), out_specs=tokens
    )(slots, gates[0], moves)
