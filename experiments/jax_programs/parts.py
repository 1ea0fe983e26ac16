"""Shared parts of the programs in this folder: their description, norms, attention, Adam."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

BF16, F32 = jnp.bfloat16, jnp.float32


@dataclass(frozen=True, kw_only=True)
class Program:
    """A step, the shapes of its arguments, and how they are sharded.

    model_flops: FLOPs of its matmuls or convolutions in closed form, without recomputation, on all
    devices. step_flops: with recomputation. expected: the collectives that its shardings imply, as
    named in HLO.
    """

    step: Callable[..., Any]
    args: tuple[Any, ...]
    shardings: tuple[Any, ...]
    model_flops: float
    step_flops: float
    expected: tuple[str, ...]
    donate: int = 0
    out_shardings: Any = field(default=None)


def shapes(weights, dtype=F32):
    """Return the shapes of name -> (shape, spec), as arrays without values."""
    return {name: jax.ShapeDtypeStruct(shape, dtype) for name, (shape, _) in weights.items()}


def specs(weights):
    """Return the specs of name -> (shape, spec)."""
    return {name: spec for name, (_, spec) in weights.items()}


def shard(x, *axes):
    """Shard an activation over these mesh axes, one entry per dimension."""
    return lax.with_sharding_constraint(x, P(*axes))


def axes_of(mesh, *names):
    """Return the axes that the mesh has, as an entry of a PartitionSpec."""
    return tuple(name for name in names if name in mesh) or None


def norm(x, scale):
    """Return the root mean square norm, computed in f32."""
    wide = x.astype(F32)
    return (wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)).astype(BF16) * scale


def rotary(x):
    """Apply rotary embedding to the two halves of each head of [batch, seq, heads, head_dim]."""
    half = x.shape[-1] // 2
    angle = jnp.arange(x.shape[1])[:, None] * 1e4 ** (-jnp.arange(half) / half)
    sin, cos = jnp.sin(angle)[:, None], jnp.cos(angle)[:, None]
    a, b = jnp.split(x.astype(F32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


def attend(q, k, v, causal):
    """Compute attention as XLA does, with full causal scores. [batch, seq, heads, head_dim]."""
    k, v = (jnp.repeat(t, q.shape[2] // k.shape[2], axis=2) for t in (k, v))
    scores = jnp.einsum("bqhk,bthk->bhqt", q, k).astype(F32) * q.shape[-1] ** -0.5
    if causal:
        scores = jnp.where(jnp.tri(q.shape[1], dtype=bool), scores, -1e30)
    return jnp.einsum("bhqt,bthk->bqhk", jax.nn.softmax(scores).astype(BF16), v)


def cross_entropy(logits, ids):
    """Return the mean cross entropy, in f32."""
    logits = logits.astype(F32)
    at_id = jnp.sum(logits * jax.nn.one_hot(ids, logits.shape[-1]), axis=-1)
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - at_id)


def adam(loss):
    """Return a step that minimises a loss with Adam (arXiv:1412.6980), without bias correction.

    Weights and moments are f32; the loss receives the weights in bf16, so gradients are bf16.
    """

    def step(state, *batch):
        weights, means, squares = state
        grads = jax.grad(loss)(jax.tree.map(lambda w: w.astype(BF16), weights), *batch)
        grads = jax.tree.map(lambda g: g.astype(F32), grads)
        means = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, means, grads)
        squares = jax.tree.map(lambda s, g: 0.95 * s + 0.05 * g * g, squares, grads)
        weights = jax.tree.map(
            lambda w, m, s: w - 1e-4 * m / (jnp.sqrt(s) + 1e-8), weights, means, squares
        )
        return weights, means, squares

    return step


def trained(loss, weights, batch, batch_specs, **facts):
    """Return the program that trains these weights with Adam; its state is donated."""
    state, places = shapes(weights), specs(weights)
    return Program(
        step=adam(loss),
        args=((state, state, state), *batch),
        shardings=((places, places, places), *batch_specs),
        out_shardings=(places, places, places),
        **facts,
    )
