"""Muon, and Adam for the weights that it leaves out."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec as P

from tpusim.export.jax_library.layers import Array, shard
from tpusim.export.jax_library.step_constants import MATRICES, MATRIX_SPECS

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # coefficients of kellerjordan.github.io/posts/muon


def muon(learning_rate: float, first: Any, second: Any) -> optax.GradientTransformation:
    """Return Muon of clipped gradients, for the matrices of layers, and Adam for all others.

    first, second: dtypes of the moments; Muon's momentum is a first one.
    """
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        scale_by_muon(first, second),
        optax.scale_by_learning_rate(learning_rate),
    )


def scale_by_muon(first: Any, second: Any) -> optax.GradientTransformation:
    """Return the updates of Muon and Adam. Where a weight has no second moment, there is a zero."""

    def start(params: Any) -> optax.ScaleByAdamState:
        mu = jax.tree.map(lambda weight: jnp.zeros(weight.shape, first), params)
        nu = jax.tree_util.tree_map_with_path(
            lambda path, weight: jnp.zeros(
                () if entry_of(path, MATRICES) else weight.shape, second
            ),
            params,
        )
        return optax.ScaleByAdamState(jnp.zeros((), jnp.int32), mu, nu)

    def update(grads: Any, state: optax.ScaleByAdamState, params: Any = None) -> tuple[Any, Any]:
        count = state.count + 1

        def of_weight(path: Any, grad: Array, mu: Array, nu: Array) -> tuple[Array, Array, Array]:
            if shape := entry_of(path, MATRICES):
                mu = 0.95 * mu + grad
                update = orthogonal(grad + 0.95 * mu, shape, entry_of(path, MATRIX_SPECS))
                return update, mu.astype(first), nu
            mu, nu = 0.9 * mu + 0.1 * grad, 0.95 * nu + 0.05 * grad**2
            root = jnp.sqrt(nu / (1 - 0.95**count)) + 1e-8
            return mu / (1 - 0.9**count) / root, mu.astype(first), nu.astype(second)

        made = jax.tree_util.tree_map_with_path(of_weight, grads, state.mu, state.nu)
        parts = jax.tree.transpose(jax.tree.structure(grads), jax.tree.structure((0, 0, 0)), made)
        return parts[0], optax.ScaleByAdamState(count, *parts[1:])

    return optax.GradientTransformation(start, update)


def entry_of(path: Any, table: Any) -> Any:
    """Return what a table has for a weight; nothing if the weight is not in it."""
    for key in path:
        table = table.get(key.key, {})
    return table


def orthogonal(update: Array, shape: tuple[int, ...], specs: tuple[P, ...]) -> Array:
    """Return the matrices of an update, made nearly orthogonal by Newton-Schulz iterations.

    shape: its matrices in the last two dimensions.
    specs: their shardings on the way to the iterations, with no more rows than columns.
    """
    a, b, c = NEWTON_SCHULZ
    x = update.astype(jnp.float32).reshape(shape)
    x = x / (jnp.sqrt(jnp.sum(x * x, axis=(-2, -1), keepdims=True)) + 1e-7)
    transposed = shape[-2] > shape[-1]
    x = jnp.swapaxes(x, -2, -1) if transposed else x
    for spec in specs:
        x = shard(x, spec)
    for _ in range(5):
        gram = x @ jnp.swapaxes(x, -2, -1)
        x = a * x + (b * gram + c * gram @ gram) @ x
    for spec in reversed(specs):
        x = shard(x, spec)
    x = jnp.swapaxes(x, -2, -1) if transposed else x
    return 0.2 * max(shape[-2:]) ** 0.5 * x.reshape(update.shape)
