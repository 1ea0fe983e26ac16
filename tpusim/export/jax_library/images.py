"""Nets of images, and training on inputs of any kind."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tpusim.export.jax_library.layers import Array
from tpusim.export.jax_library.step_constants import INPUT_SPECS, INPUTS, MESH
from tpusim.export.jax_library.training import init, step_specs, train_step


def standardise(x: Array, scale: Array, shift: Array, over: int, group: int = 0) -> Array:
    """Norm each channel of x, its last dimension, over `over` dimensions before it.

    group: examples, along the first dimension, that are normed together; 0 for all.
    """
    if group:
        return standardise(x.reshape(-1, group, *x.shape[1:]), scale, shift, over).reshape(x.shape)
    wide, dims = x.astype(jnp.float32), tuple(range(x.ndim - 1 - over, x.ndim - 1))
    mean = jnp.mean(wide, dims, keepdims=True)
    variance = jnp.mean(wide * wide, dims, keepdims=True) - mean * mean
    return ((wide - mean) * (lax.rsqrt(variance + 1e-5) * scale) + shift).astype(x.dtype)


def frozen_norm(x: Array) -> Array:
    """Scale and shift x by constants, as a norm does whose statistics are not trained."""
    return x * jnp.asarray(0.5, x.dtype) + jnp.asarray(0.25, x.dtype)


def mean_of_positions(x: Array) -> Array:
    """Return the mean over all dimensions between the first and the last."""
    return jnp.mean(x.astype(jnp.float32), tuple(range(1, x.ndim - 1))).astype(x.dtype)


def side_by_side(*parts: Array) -> Array:
    """Return the channels of arrays of equal positions side by side."""
    return jnp.concatenate(parts, axis=-1)


def cell_of_positions(gates: Array, *before: Array) -> Array:
    """Return an LSTM's cell at each position, of gates [..., 4 x hidden] and the cell before."""
    enter, forget, _, made = jnp.split(gates.astype(jnp.float32), 4, axis=-1)
    cell = jax.nn.sigmoid(enter) * jnp.tanh(made)
    for one in before:
        cell += jax.nn.sigmoid(forget) * one.astype(jnp.float32)
    return cell.astype(gates.dtype)


def state_of_positions(gates: Array, cell: Array) -> Array:
    """Return an LSTM's state at each position, of its gates and its cell."""
    leave = jnp.split(gates.astype(jnp.float32), 4, axis=-1)[2]
    return (jax.nn.sigmoid(leave) * jnp.tanh(cell.astype(jnp.float32))).astype(gates.dtype)


def centre(x: Array, height: int, width: int) -> Array:
    """Return the positions in the middle of images, [batch, height, width, channels]."""
    first = (x.shape[1] - height) // 2, (x.shape[2] - width) // 2
    return x[:, first[0] : first[0] + height, first[1] : first[1] + width]


def mean_square_error(x: Array, target: Array) -> Array:
    """Return the mean square error of each example."""
    error = x.astype(jnp.float32) - target.astype(jnp.float32)
    return jnp.mean(error * error, tuple(range(1, x.ndim)))


def dice_and_cross_entropy(logits: Array, labels: Array) -> Array:
    """Return the sum of the cross entropy of each example and of 1 less its Dice coefficients."""
    wide, dims = logits.astype(jnp.float32), tuple(range(1, labels.ndim))
    hit = jax.nn.one_hot(labels, wide.shape[-1], dtype=jnp.float32)
    each = jax.nn.log_softmax(wide)
    likely = jnp.exp(each)
    both = 2 * jnp.sum(likely * hit, dims)
    dice = both / (jnp.sum(likely * likely, dims) + jnp.sum(hit, dims) + 1e-6)
    return 1 - jnp.mean(dice, -1) - jnp.mean(jnp.sum(each * hit, -1), dims)


def drawn(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """Return normal random numbers, or zeros and ones where numbers are whole."""
    if jnp.issubdtype(dtype, jnp.integer):
        return jax.random.randint(key, shape, 0, 2, dtype)
    return jax.random.normal(key, shape).astype(dtype)


def main_on_inputs(steps: int = 10) -> None:
    """Train on one batch of random inputs, over and over, so that the loss falls."""
    axes = (jax.sharding.AxisType.Auto,) * len(MESH)
    with jax.set_mesh(jax.make_mesh(tuple(MESH.values()), tuple(MESH), axis_types=axes)):
        state = jax.jit(init, out_shardings=step_specs())(jax.random.key(0))
        keys = jax.random.split(jax.random.key(1), len(INPUTS))
        batch = {
            name: jax.device_put(drawn(key, *INPUTS[name]), INPUT_SPECS[name])
            for key, name in zip(keys, INPUTS, strict=True)
        }
        step = jax.jit(train_step, donate_argnums=0, out_shardings=(step_specs(), None))
        for number in range(steps):
            state, value = step(state, batch)
            print(f"step {number}: loss {value:.4f}")
