"""The loss of default boxes: cross entropy with hard negatives, and the Huber loss of moves."""

import jax
import jax.numpy as jnp
from jax import lax

from tpusim.export.jax_library.layers import Array

NEGATIVES = 3
"""Hard negatives for each positive."""


def each_box(x: Array, count: int) -> Array:
    """Return the numbers of each box, [..., boxes, count], of channels [..., boxes x count]."""
    return x.reshape(*x.shape[:-1], -1, count)


def boxes_before_positions(x: Array) -> Array:
    """Return the boxes of a level, [batch, boxes, count], of [batch, height, width, boxes, count].

    Boxes of a position are the outer dimension.
    """
    return x.transpose(0, 3, 1, 2, 4).reshape(x.shape[0], -1, x.shape[-1])


def one_after_another(*levels: Array) -> Array:
    """Return the boxes of all levels, [batch, boxes, count]."""
    return jnp.concatenate(levels, axis=1)


def moves_of_levels(*levels: Array) -> Array:
    """Return the moves of the boxes of all levels, [batch, boxes, 4], of [..., boxes x 4]."""
    return one_after_another(*(boxes_before_positions(each_box(level, 4)) for level in levels))


def losses_of_levels(*levels: Array) -> Array:
    """Return numbers of the boxes of all levels, [batch, boxes], of [batch, ..., boxes]."""
    return one_after_another(*(level.reshape(level.shape[0], -1) for level in levels))


def highest_of_boxes(logits: Array) -> Array:
    """Return the highest logit of each box in f32."""
    return jnp.max(logits, axis=-1).astype(jnp.float32)


def entropy_of_boxes(logits: Array, labels: Array, highest: Array) -> Array:
    """Return the softmax cross entropy of each box, by a mask of its label."""
    shifted = logits.astype(jnp.float32) - highest[..., None]
    hit = jax.nn.one_hot(labels, logits.shape[-1], dtype=jnp.float32)
    return jnp.log(jnp.sum(jnp.exp(shifted), axis=-1)) - jnp.sum(shifted * hit, axis=-1)


def negative_scores(entropy: Array, labels: Array) -> Array:
    """Return the losses of boxes without an object, and zeros."""
    return jnp.where(labels > 0, 0.0, entropy)


def limit_with_bit(scores: Array, matched: Array, *before: Array, bit: int = 0) -> Array:
    """Return the limit of each example, [batch], with one more bit if enough scores are above it.

    scores: [batch, boxes]; matched: boxes with an object of each example, [batch]; before: the
        limit after the round before.
    """
    limit = before[0] if before else jnp.zeros_like(matched)
    bits = lax.bitcast_convert_type(limit, jnp.int32) | (1 << bit)
    higher = lax.bitcast_convert_type(bits, jnp.float32)
    above = jnp.sum(scores > higher[:, None], axis=1)
    return jnp.where(above >= NEGATIVES * matched, higher, limit)


def loss_of_classes(entropy: Array, labels: Array, limit: Array, matched: Array) -> Array:
    """Return the losses of positives and of hard negatives, over the number of positives."""
    hard = lax.stop_gradient(negative_scores(entropy, labels)) >= limit[:, None]
    chosen = (labels > 0).astype(jnp.float32) + hard
    return jnp.sum(entropy * chosen, axis=1) / jnp.maximum(matched, 1.0)


def loss_of_moves(moves: Array, wanted: Array, labels: Array, matched: Array) -> Array:
    """Return the Huber loss of the moves of positives, over the number of positives."""
    error = jnp.abs(moves.astype(jnp.float32) - wanted)
    each = jnp.where(error > 1.0, error - 0.5, 0.5 * error * error)
    each = jnp.sum(each, axis=-1) * (labels > 0)
    return jnp.sum(each, tuple(range(1, each.ndim))) / jnp.maximum(matched, 1.0)
