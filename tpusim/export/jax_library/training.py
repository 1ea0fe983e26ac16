"""The training step: optimizers, the state and its shardings, gradients, and a loop that trains.

Functions that end in `in_parts` take the place of those without where weights are updated in parts.
"""

from typing import Any
from zlib import crc32

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

from tpusim.export.jax_library.layers import Array, State, Weights, shard
from tpusim.export.jax_library.step_constants import (
    ACCUMULATORS,
    BATCH_SHAPE,
    BATCH_SPEC,
    GRADIENTS,
    MESH,
    OPTIMIZER,
    ORDER,
    SHAPES,
    SPECS,
    STORED,
    UPDATE_SPECS,
    VOCAB,
    loss,
)


def adam(learning_rate: float, first: Any, second: Any = None) -> optax.GradientTransformation:
    """Return Adam of clipped gradients, with its moments in these dtypes.

    second: None for that of the weights.
    """
    moments = optax.scale_by_adam(b2=0.95, mu_dtype=first)
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        moments if second is None else second_moments_as(second, moments),
        optax.scale_by_learning_rate(learning_rate),
    )


def second_moments_as(
    dtype: Any, moments: optax.GradientTransformation
) -> optax.GradientTransformation:
    """Return Adam's moments with the second ones stored in `dtype`."""

    def narrow(state: Any) -> Any:
        return state._replace(nu=jax.tree.map(lambda x: x.astype(dtype), state.nu))

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        wide = jax.tree.map(lambda x: x.astype(jnp.float32), state.nu)
        made, state = moments.update(grads, state._replace(nu=wide), params)
        return made, narrow(state)

    return optax.GradientTransformation(lambda params: narrow(moments.init(params)), update)


def state_specs(optimizer: optax.GradientTransformation, shapes: Any, specs: Any) -> Any:
    """Return the shardings of an optimizer's state, which are those of the weights.

    A mean over a dimension has the sharding of the others.
    """

    def of(moment: Any, weight: Any, spec: P) -> P:
        spec = (*spec, *[None] * (len(weight.shape) - len(spec)))
        for dropped in range(len(weight.shape)):
            rest = [n for n in range(len(weight.shape)) if n != dropped]
            if moment.shape == tuple(weight.shape[n] for n in rest):
                return P(*(spec[n] for n in rest))
        return P(*spec) if moment.shape == weight.shape else P()

    state = jax.eval_shape(optimizer.init, shapes)
    return optax.tree.map_params(
        optimizer, of, state, shapes, specs, transform_non_params=lambda _: P()
    )


def abstract_weights() -> Weights:
    """Return the shape and dtype of each weight."""
    return jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, STORED),
        SHAPES,
        is_leaf=lambda node: isinstance(node, tuple),
    )


def init(key: Array) -> State:
    """Return weights, drawn at random, and the state of the optimizer."""

    def draw(path: Any, weight: Any) -> Array:
        name = jax.tree_util.keystr(path)
        if "scale" in name:
            return jnp.ones(weight.shape, weight.dtype)
        own = jax.random.fold_in(key, crc32(name.encode()))
        return (0.02 * jax.random.normal(own, weight.shape)).astype(weight.dtype)

    params = jax.tree_util.tree_map_with_path(draw, abstract_weights())
    return params, OPTIMIZER.init(params)


def step_specs() -> State:
    """Return the shardings of weights and of the state of the optimizer."""
    return SPECS, state_specs(OPTIMIZER, abstract_weights(), SPECS)


def gradients(params: Weights, ids: Array, targets: Array) -> tuple[Array, Weights]:
    """Return the loss and the gradients, of one microbatch."""
    used = jax.tree.map(lambda weight: weight.astype(GRADIENTS), params)
    value, grads = jax.value_and_grad(loss)(used, ids, targets)
    return value, grads


def mean_gradients(params: Weights, ids: Array, targets: Array) -> tuple[Array, Weights]:
    """Return the mean loss and the mean gradients, of microbatches one after the other."""

    def add(total: Weights, batch: tuple[Array, Array]) -> tuple[Weights, Array]:
        value, grads = gradients(params, *batch)
        return jax.tree.map(lambda x, y: x + y.astype(x.dtype), total, grads), value

    zeros = jax.tree.map(lambda weight: jnp.zeros(weight.shape, ACCUMULATORS), params)
    total, values = lax.scan(add, shard(zeros, SPECS), (ids, targets))
    return jnp.mean(values), jax.tree.map(lambda x: x / len(ids), total)


def train_step(state: State, ids: Array, targets: Array) -> tuple[State, Array]:
    """Return the state after one step, and the loss before it."""
    params, moments = state
    value, grads = mean_gradients(params, ids, targets)
    grads = jax.tree.map(lambda grad: grad.astype(jnp.float32), grads)
    updates, moments = OPTIMIZER.update(grads, moments, params)
    return (optax.apply_updates(params, updates), moments), value


def main(steps: int = 10) -> None:
    """Train on one batch of random tokens, over and over, so that the loss falls."""
    axes = (jax.sharding.AxisType.Auto,) * len(MESH)
    with jax.set_mesh(jax.make_mesh(tuple(MESH.values()), tuple(MESH), axis_types=axes)):
        state = jax.jit(init, out_shardings=step_specs())(jax.random.key(0))
        tokens = jax.random.randint(jax.random.key(1), BATCH_SHAPE, 0, VOCAB)
        following = jnp.roll(tokens, -1, axis=-1)
        ids = jax.device_put(tokens[..., ORDER], BATCH_SPEC)
        targets = jax.device_put(following[..., ORDER], BATCH_SPEC)
        step = jax.jit(train_step, donate_argnums=0, out_shardings=(step_specs(), None))
        for number in range(steps):
            state, value = step(state, ids, targets)
            print(f"step {number}: loss {value:.4f}")


def step_specs_in_parts() -> State:
    """Return the shardings of weights and of the state of the optimizer, between two steps."""
    return UPDATE_SPECS, state_specs(OPTIMIZER, abstract_weights(), UPDATE_SPECS)


def gradients_in_parts(params: Weights, ids: Array, targets: Array) -> tuple[Array, Weights]:
    """Return the loss and the gradients, of one microbatch, each device its part of them."""
    used = jax.tree.map(lambda weight: weight.astype(GRADIENTS), params)
    value, grads = jax.value_and_grad(loss)(used, ids, targets)
    return value, shard(grads, UPDATE_SPECS)


def train_step_in_parts(state: State, ids: Array, targets: Array) -> tuple[State, Array]:
    """Return the state after one step, and the loss before it; weights are gathered once."""
    params, moments = state
    used = shard(jax.tree.map(lambda weight: weight.astype(GRADIENTS), params), SPECS)
    value, grads = mean_gradients(used, ids, targets)
    grads = jax.tree.map(lambda grad: grad.astype(jnp.float32), grads)
    updates, moments = OPTIMIZER.update(grads, moments, params)
    return (optax.apply_updates(params, updates), moments), value
