"""Encoders of patches, texts and speech: norms, positions, and losses of pairs."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tpusim.export.jax_library.layers import Array


def layer_norm(x: Array, scale: Array, shift: Array) -> Array:
    """Norm x over its last dimension by mean and variance; scale and shift it."""
    wide = x.astype(jnp.float32)
    mean = jnp.mean(wide, axis=-1, keepdims=True)
    variance = jnp.mean(wide * wide, axis=-1, keepdims=True) - mean * mean
    unscaled = ((wide - mean) * lax.rsqrt(variance + 1e-6)).astype(x.dtype)
    return unscaled * scale.astype(x.dtype) + shift.astype(x.dtype)


def unshifted_layer_norm(x: Array, scale: Array) -> Array:
    """Norm x over its last dimension by mean and variance; scale it."""
    return unscaled_layer_norm(x) * scale.astype(x.dtype)


def unscaled_layer_norm(x: Array) -> Array:
    """Norm x over its last dimension by mean and variance."""
    wide = x.astype(jnp.float32)
    mean = jnp.mean(wide, axis=-1, keepdims=True)
    variance = jnp.mean(wide * wide, axis=-1, keepdims=True) - mean * mean
    return ((wide - mean) * lax.rsqrt(variance + 1e-6)).astype(x.dtype)


def unscaled_rms_norm(x: Array) -> Array:
    """Divide x by the root mean square of its last dimension."""
    wide = x.astype(jnp.float32)
    return (wide * lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-6)).astype(x.dtype)


def rms_norm_of_heads(x: Array, scale: Array) -> Array:
    """Divide x, [..., heads, dim], by the root mean square of all heads together; scale it."""
    wide = x.astype(jnp.float32)
    variance = jnp.mean(wide * wide, axis=(-2, -1), keepdims=True)
    return (wide * lax.rsqrt(variance + 1e-6)).astype(x.dtype) * scale.astype(x.dtype)


def relu2(x: Array) -> Array:
    """Return the square of the positive part of x."""
    return jnp.square(jax.nn.relu(x))


def gated_by_sigmoid(x: Array, gate: Array) -> Array:
    """Return x times the sigmoid of one number a token."""
    return x * jax.nn.sigmoid(gate)


def after_token(x: Array, token: Array) -> Array:
    """Return x, [batch, patches, embed], with a token in front of all patches."""
    return jnp.concatenate([jnp.broadcast_to(token, (len(x), 1, len(token))), x], axis=1)


def rows_of_examples(x: Array, ids: Array) -> Array:
    """Return the rows of each example of x, [batch, sequence, embed], at ids, [batch, count]."""
    return jnp.take_along_axis(x, ids[..., None], axis=1)


def first_rows(table: Array, count: int) -> Array:
    """Return the first rows of a table."""
    return table[:count]


def one_hot_rows(ids: Array, dtype: Any, count: int) -> Array:
    """Return a row of `count` numbers for each id, all of them zero but one."""
    return jax.nn.one_hot(ids, count, dtype=dtype)


def mean_of_example(x: Array) -> Array:
    """Return the mean of each example of x, [batch, count]."""
    return jnp.mean(x, axis=1)


def position(x: Array, index: int = 0) -> Array:
    """Return one position of x, [batch, sequence, embed]."""
    return x[:, index]


def broadcast(row: Array, examples: int) -> Array:
    """Return a row for each example."""
    return jnp.broadcast_to(row, (examples, *row.shape))


def joined(*parts: Array) -> Array:
    """Return arrays, [batch, sequence, ...], one after the other along the sequence."""
    return jnp.concatenate(parts, axis=1)


def parted(x: Array, first: int) -> tuple[Array, Array]:
    """Return the first positions of x, [batch, sequence, ...], and the others."""
    return x[:, :first], x[:, first:]


def behind(x: Array, last: int) -> Array:
    """Return the last positions of x, [batch, sequence, ...]."""
    return x[:, -last:]


def modulated_norm(x: Array, rows: Array, shift: int = 0) -> Array:
    """Norm x over its last dimension; shift it by one row of each example, scale by the next.

    rows: [batch, rows x embed]; the scale is added to 1.
    """
    wide = x.astype(jnp.float32)
    mean = jnp.mean(wide, axis=-1, keepdims=True)
    variance = jnp.mean(wide * wide, axis=-1, keepdims=True) - mean * mean
    unscaled = ((wide - mean) * lax.rsqrt(variance + 1e-6)).astype(x.dtype)
    rows = rows.reshape(len(x), -1, *[1] * (x.ndim - 2), x.shape[-1])
    return unscaled * (1 + rows[:, shift + 1]) + rows[:, shift]


def gated(x: Array, rows: Array, gate: int = 0) -> Array:
    """Multiply x, [batch, sequence, embed], by one row of [batch, rows x embed]."""
    return x * rows.reshape(len(x), -1, x.shape[-1])[:, gate, None]


def scaled(x: Array, rows: Array, scale: int = 0) -> Array:
    """Multiply x, [batch, sequence, embed], by 1 more than one row of [batch, rows x embed]."""
    return x * (1 + rows.reshape(len(x), -1, x.shape[-1])[:, scale, None])


def filled(x: Array, fill: Array, given: int) -> Array:
    """Return x, [batch, sequence, embed], with one vector after the tokens that are given."""
    return jnp.where(jnp.arange(x.shape[1])[:, None] < given, x, fill)


def tanh(x: Array) -> Array:
    """Return the hyperbolic tangent."""
    return jnp.tanh(x)


def glu(x: Array, gate: Array) -> Array:
    """Return x times the sigmoid of its gate."""
    return x * jax.nn.sigmoid(gate)


def sinusoids(count: int, width: int) -> Array:
    """Return sines and cosines of all distances of a sequence, [2 n - 1, width]."""
    frequency = 1e4 ** (-jnp.arange(width // 2) / (width // 2))
    angle = (jnp.arange(count)[:, None] - count // 2) * frequency
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)


def relative_shift(scores: Array) -> Array:
    """Return scores by key, [..., n, n], of scores by distance, [..., n, 2 n - 1]."""
    *rest, count, width = scores.shape
    padded = jnp.pad(scores, [(0, 0)] * (scores.ndim - 1) + [(1, 0)])
    shifted = padded.reshape(*rest, width + 1, count)[..., 1:, :].reshape(*rest, count, width)
    return shifted[..., :count]


def unit_length(x: Array) -> Array:
    """Divide each row of x by its length."""
    wide = x.astype(jnp.float32)
    return (wide * lax.rsqrt(jnp.sum(wide * wide, axis=-1, keepdims=True) + 1e-6)).astype(x.dtype)


def scale_by_exp(x: Array, temperature: Array) -> Array:
    """Multiply x by the exponential of a learnt number."""
    return x * jnp.exp(temperature.astype(jnp.float32)).astype(x.dtype)


def own_cross_entropy(logits: Array, axis: int = 0) -> Array:
    """Return the loss of each pair of [image, text], among all along an axis."""
    wide = logits.astype(jnp.float32)
    own = jnp.sum(wide * jnp.eye(len(wide), dtype=jnp.float32), axis=axis)
    return jax.nn.logsumexp(wide, axis=axis) - own


def own_sigmoid(logits: Array, temperature: Array, offset: Array) -> Array:
    """Return the sum of the binary losses of each image with all texts, of [image, text]."""
    scale, shift = (one.astype(jnp.float32) for one in (temperature, offset))
    sign = 2 * jnp.eye(len(logits), dtype=jnp.float32) - 1
    return -jnp.sum(jax.nn.log_sigmoid(sign * (logits * jnp.exp(scale) + shift)), axis=-1)
