"""The library's step whose weights are updated in parts. Code to copy, as that of `functions.py`.

Functions that end in `in_parts` take the place of those of `functions.py` in an exported file.
"""

import jax
import jax.numpy as jnp
import optax

from tpusim.export.jax_library.functions import (
    Array,
    State,
    Weights,
    abstract_weights,
    mean_gradients,
    shard,
    state_specs,
)
from tpusim.export.jax_library.step_constants import GRADIENTS, OPTIMIZER, SPECS, UPDATE_SPECS, loss


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
