"""Element-wise groups, losses, and attention kernels of language models."""

from functools import reduce
from math import prod
from operator import and_
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name as checkpoint_name
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

Array: TypeAlias = jax.Array
Weights: TypeAlias = Any
State: TypeAlias = tuple[Weights, Any]

INTERPRET = jax.default_backend() == "cpu" and __name__ == "__main__"  # kernels on a CPU

shard = lax.with_sharding_constraint


def rms_norm(x: Array, scale: Array) -> Array:
    """Divide x by the root mean square of its last dimension, and scale it."""
    wide = x.astype(jnp.float32)
    variance = jnp.mean(wide * wide, axis=-1, keepdims=True)
    return (wide * lax.rsqrt(variance + 1e-6)).astype(x.dtype) * scale.astype(x.dtype)


def rotary(x: Array, width: int, order: np.ndarray | None = None) -> Array:
    """Rotate the last `width` elements of x, [batch, seq, ..., dim], by their position.

    order: positions of the tokens, where they are not in order.
    """
    frequency = 1e4 ** (-jnp.arange(width // 2) / (width // 2))
    position = jnp.arange(x.shape[1]) if order is None else jnp.asarray(order)
    angle = position[:, None] * frequency
    angle = angle.reshape(angle.shape[0], *[1] * (x.ndim - 3), width // 2)
    rest, turned = jnp.split(x, [x.shape[-1] - width], axis=-1)
    a, b = jnp.split(turned.astype(jnp.float32), 2, axis=-1)
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    turned = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)
    return jnp.concatenate([rest, turned], axis=-1) if rest.shape[-1] else turned


def group_parts(x: Array) -> tuple[Array, Array, Array]:
    """Return queries, keys and values of x, [batch, seq, group, queries + 2, dim]."""
    return x[..., :-2, :], x[..., -2, :], x[..., -1, :]


def parts(x: Array) -> tuple[Array, ...]:
    """Return the slices of x, [batch, seq, part, heads, dim], along its parts."""
    return tuple(x[:, :, place] for place in range(x.shape[2]))


def norm_and_rotary(
    x: Array, scale: Array, width: int, order: np.ndarray | None = None
) -> tuple[Array, Array]:
    """Split a latent from the last `width` elements; norm the one and rotate the other."""
    latent, turned = jnp.split(x, [x.shape[-1] - width], axis=-1)
    return rms_norm(latent, scale), rotary(turned, width, order)


def keys_and_values(up: Array, turned: Array, value_width: int) -> tuple[Array, Array]:
    """Return the keys of each head, which end with the rotated part of all, and its values."""
    keys, values = jnp.split(up, [up.shape[-1] - value_width], axis=-1)
    turned = jnp.broadcast_to(turned[:, :, None], (*keys.shape[:-1], turned.shape[-1]))
    return jnp.concatenate([keys, turned], axis=-1), values


def softmax(
    scores: Array, dtype: Any, width: int, *, causal: bool = False, window: int = 0
) -> Array:
    """Return the weights of keys for scores of heads of `width`, [batch, heads, query, key]."""
    query, key = (lax.broadcasted_iota(jnp.int32, scores.shape[2:], axis) for axis in (0, 1))
    seen = key <= query if causal else key >= 0
    if window:
        seen &= abs(query - key) < window
    scores = scores * jnp.asarray(width**-0.5, scores.dtype)
    return jax.nn.softmax(jnp.where(seen, scores, -1e30)).astype(dtype)


def _soft_cap(logits: Array, cap: float) -> Array:
    """Return logits in f32, bent to less than `cap` where it is not 0."""
    wide = logits.astype(jnp.float32)
    return cap * jnp.tanh(wide / cap) if cap else wide


def cross_entropy(logits: Array, targets: Array, cap: float = 0.0) -> Array:
    """Return the loss of each token; `cap` bounds the logits."""
    wide = _soft_cap(logits, cap)
    hit = jax.nn.one_hot(targets, wide.shape[-1], dtype=jnp.float32)
    return jax.nn.logsumexp(wide, axis=-1) - jnp.sum(wide * hit, axis=-1)


def cross_entropy_by_index(logits: Array, targets: Array, cap: float = 0.0) -> Array:
    """Return the loss of each token, whose logit is read by its index; `cap` bounds the logits."""
    wide = _soft_cap(logits, cap)
    sequence, position = jnp.indices(targets.shape, sparse=True)
    return jax.nn.logsumexp(wide, axis=-1) - wide[sequence, position, targets]


def cross_entropy_by_take(logits: Array, targets: Array, cap: float = 0.0) -> Array:
    """Return the loss of each token, whose logit is taken along the vocabulary, as in optax."""
    wide = _soft_cap(logits, cap)
    taken = jnp.take_along_axis(wide, targets[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(wide, axis=-1) - taken


def top_k(logits: Array, choices: int) -> tuple[Array, Array]:
    """Return the weights of each token's experts, [batch, seq, choice], and their numbers."""
    weights, chosen = lax.top_k(jax.nn.softmax(logits), choices)
    return weights / jnp.sum(weights, axis=-1, keepdims=True), chosen


def slot_masks(
    gates: tuple[Array, Array], experts: int, slots: int, dtype: Any
) -> tuple[Array, Array]:
    """Return the weight of each token in each slot, [batch, seq, expert, slot], and where it is.

    Slots are given in the order of choices, then of tokens; tokens without one are dropped.
    """
    weights, chosen = gates
    taken = jax.nn.one_hot(chosen, experts, dtype=jnp.int32)
    batch, seq, choices, _ = taken.shape
    in_order = taken.swapaxes(1, 2).reshape(batch, choices * seq, experts)
    place = jnp.cumsum(in_order, axis=1) * in_order
    place = place.reshape(batch, choices, seq, experts).swapaxes(1, 2)
    slot = jax.nn.one_hot(jnp.sum(place, axis=2) - 1, slots, dtype=dtype)
    weight = jnp.sum(weights[..., None] * taken, axis=2).astype(dtype)
    combine = weight[..., None] * slot
    return combine, combine > 0


def tokens_before(targets: Array) -> Array:
    """Return the tokens that a decoder reads: for each of the targets the one before it, or 0."""
    return jnp.pad(targets[:, :-1], ((0, 0), (1, 0)))


def lstm_cell(gates: Array, cell: Array) -> tuple[Array, Array]:
    """Return the state and the cell of an LSTM after a step; gates are [batch, gate, width]."""
    enter, new, forget, leave = (gates[:, gate] for gate in range(4))
    cell = cell * jax.nn.sigmoid(forget) + jax.nn.sigmoid(enter) * jnp.tanh(new)
    return jnp.tanh(cell) * jax.nn.sigmoid(leave), cell


def additive_scores(keys: Array, query: Array, v: Array) -> Array:
    """Return the scores of keys, [batch, key, width], for a query, [batch, width]."""
    return jnp.sum(v * jnp.tanh(keys + query[:, None]), axis=-1)


def plain_softmax(scores: Array) -> Array:
    """Return the weights of scores, [batch, key]."""
    return jax.nn.softmax(scores)


def attended_values(weights: Array, values: Array) -> Array:
    """Return the sum of values, [batch, key, width], by their weights."""
    return jnp.sum(weights[..., None] * values, axis=1)


def tiles(x: Array, *cuts: tuple[int, int, int]) -> Array:
    """Return equal parts of x, stacked; each has a part of what every device has of x.

    cuts: (dimension, number of parts, devices that share the dimension).
    """
    for done, (dim, count, devices) in enumerate(cuts):
        *before, size = x.shape[: done + dim + 1]
        after = x.shape[done + dim + 1 :]
        x = x.reshape(*before, devices, count, size // (devices * count), *after)
        x = jnp.moveaxis(x, done + dim + 1, 0)
        x = x.reshape(count, *before, size // count, *after)
    return x.reshape(-1, *x.shape[len(cuts) :])


def balanced_order(seq: int, shards: int) -> np.ndarray:
    """Return the positions of a sequence of which each shard has an early and a late part."""
    parts = np.arange(seq).reshape(2 * shards, -1)
    return np.concatenate([parts[[i, -1 - i]].ravel() for i in range(shards)])


def axes_of(spec: P, dim: int) -> tuple[str, ...]:
    """Return the mesh axes that shard a dimension."""
    entry = spec[dim] if dim < len(spec) else None
    return (entry,) if isinstance(entry, str) else tuple(entry or ())


def shards(spec: P, dim: int) -> int:
    """Return the number of parts into which a sharding cuts a dimension."""
    sizes = jax.sharding.get_abstract_mesh().shape
    return prod(sizes[axis] for axis in axes_of(spec, dim))


def attention_mask(
    shape: tuple[int, int], causal: bool, window: int, order: np.ndarray | None
) -> masks.Mask:
    """Return the mask of the keys that each query sees, [query, key].

    order: positions of the queries, where they are not in order.
    """
    seen = [masks.CausalMask(shape)] if causal else []
    if window:
        seen.append(masks.LocalMask(shape, (window - 1, 0 if causal else window - 1), 0))
    for mask in seen:
        mask.q_sequence = mask.q_sequence if order is None else order
    return reduce(and_, seen) if seen else masks.FullMask(shape)


def block_of(size: int, block: int = 512) -> int:
    """Return the largest block of whole lanes, up to `block`, that divides a size; or all of it."""
    return next((n for n in range(block, 0, -128) if size % n == 0), size)


def flash_attention(
    query: Array,
    key: Array,
    value: Array,
    query_spec: P,
    key_spec: P,
    *,
    causal: bool = False,
    window: int = 0,
    order: np.ndarray | None = None,
    block: tuple[int, int] = (512, 512),
    block_backward: tuple[int, int] = (512, 512),
    fused: bool = False,
    saved_as: str | None = None,
) -> Array:
    """Return attention of query, [batch, seq, heads, dim], to keys and values, by a Pallas kernel.

    Each device runs the kernel on its own sequences, heads and queries, with all of their keys.
    order: positions of the tokens, where they are not in order.
    block, block_backward: queries and keys that a step of the kernel visits, at most.
    fused: one kernel computes the gradients of queries, keys and values.
    saved_as: the name under which a checkpoint policy saves what the backward kernel reads.
    """
    seq, heads, keys = query.shape[1], query.shape[2], key.shape[1]
    window = window if window < keys else 0
    own = seq // shards(query_spec, 1)
    parts = seq // own if causal or window else 1  # where all see all keys, one mask is for all
    mask = attention_mask((own * parts, keys), causal, window, order)
    if order is not None:
        key, value = (x[:, np.argsort(order)] for x in (key, value))
    rows, columns = block_of(own, block[0]), block_of(keys, block[1])
    late_rows, late_columns = block_of(own, block_backward[0]), block_of(keys, block_backward[1])
    apart = {} if fused else {"block_q_dq": late_rows, "block_kv_dq": late_columns}
    sizes = splash.BlockSizes(
        block_q=rows, block_kv=columns, block_kv_compute=columns,
        block_q_dkv=late_rows, block_kv_dkv=late_columns, block_kv_dkv_compute=late_columns,
        use_fused_bwd_kernel=fused, **apart,
    )  # fmt: skip
    own_heads = heads // shards(query_spec, 2)
    kernel = splash.make_splash_mha(
        mask=masks.MultiHeadMask([mask] * own_heads),
        head_shards=1,
        q_seq_shards=parts,
        block_sizes=sizes,
        residual_checkpoint_name=saved_as,
        interpret=INTERPRET,
    )
    rows_of = P(None, query_spec[1] if parts > 1 else None)
    mesh = jax.sharding.get_abstract_mesh()
    kernel_spec = kernel.manual_sharding_spec(NamedSharding(mesh, rows_of))
    group = heads // key.shape[2]

    def local(kernel: Any, query: Array, key: Array, value: Array) -> Array:
        query = query * jnp.asarray(query.shape[-1] ** -0.5, query.dtype)
        if shards(query_spec, 2) > shards(key_spec, 2):  # keys that several devices share
            first = lax.axis_index(query_spec[2]) * own_heads // group
            count = max(1, own_heads // group)
            key, value = (lax.dynamic_slice_in_dim(x, first, count, 2) for x in (key, value))
        query, key, value = (x.swapaxes(1, 2) for x in (query, key, value))
        return jax.vmap(kernel)(query, key, value).swapaxes(1, 2)

    return jax.shard_map(
        local,
        in_specs=(kernel_spec, query_spec, key_spec, key_spec),
        out_specs=query_spec,
        check_vma=False,
    )(kernel, query, key, value)
