"""The loss of default boxes: cross entropy with hard negatives, and the Huber loss of moves."""

import jax
import jax.numpy as jnp
from jax import lax

from tpusim.export.jax_library.layers import Array

NEGATIVES = 3
"""Hard negatives for each positive."""


def boxes_of_levels(*given: Array) -> Array:
    """Return the numbers of the boxes of all levels in f32, [batch, boxes, count].

    given: [batch, height, width, boxes x count] of each level; the count. Boxes of a position are
        the outer dimension within a level.
    """
    *levels, count = given
    flat = []
    for level in levels:
        apart = level.astype(jnp.float32).reshape(*level.shape[:3], -1, int(count))
        flat.append(apart.transpose(0, 3, 1, 2, 4).reshape(level.shape[0], -1, int(count)))
    return jnp.concatenate(flat, axis=1)


def in_f32(x: Array) -> Array:
    """Return x in f32."""
    return x.astype(jnp.float32)


def entropy_of_boxes(logits: Array, labels: Array) -> Array:
    """Return the softmax cross entropy of each box, by a mask of its label."""
    shifted = logits - lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
    hit = jax.nn.one_hot(labels, logits.shape[-1], dtype=jnp.float32)
    return jnp.log(jnp.sum(jnp.exp(shifted), axis=-1)) - jnp.sum(shifted * hit, axis=-1)


def negative_scores(entropy: Array, labels: Array) -> Array:
    """Return the losses of boxes without an object, and zeros."""
    return jnp.where(labels > 0, 0.0, entropy)


def limit_with_bit(*given: Array, bit: int = 0) -> Array:
    """Return the limit of each example, [batch], with one more bit if enough scores are above it.

    given: scores [batch, ...] of one or several arrays; the matched boxes of each example, and
        after the first round the limit, [batch].
    """
    scores = [each for each in given if each.ndim > 1]
    matched, *before = (each for each in given if each.ndim == 1)
    limit = before[0] if before else jnp.zeros_like(matched)
    bits = lax.bitcast_convert_type(limit, jnp.int32) | (1 << bit)
    higher = lax.bitcast_convert_type(bits, jnp.float32)
    above = sum(
        jnp.sum(each > jnp.expand_dims(higher, range(1, each.ndim)), tuple(range(1, each.ndim)))
        for each in scores
    )
    return jnp.where(above >= NEGATIVES * matched, higher, limit)


def loss_of_classes(entropy: Array, labels: Array, limit: Array, matched: Array) -> Array:
    """Return the losses of positives and of hard negatives, over the number of positives."""
    dims = tuple(range(1, entropy.ndim))
    positive = labels > 0
    score = jnp.where(positive, 0.0, entropy)
    hard = lax.stop_gradient(score) >= jnp.expand_dims(limit, dims)
    chosen = positive.astype(jnp.float32) + hard
    return jnp.sum(entropy * chosen, dims) / jnp.maximum(matched, 1.0)


def loss_of_moves(moves: Array, wanted: Array, labels: Array, matched: Array) -> Array:
    """Return the Huber loss of the moves of positives, over the number of positives."""
    error = jnp.abs(moves - wanted)
    each = jnp.where(error > 1.0, error - 0.5, 0.5 * error * error)
    each = jnp.sum(each, axis=-1) * (labels > 0)
    return jnp.sum(each, tuple(range(1, each.ndim))) / jnp.maximum(matched, 1.0)
