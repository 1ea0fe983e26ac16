"""Layers without a scan, and circular pipelines."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name as checkpoint_name
from jax.sharding import PartitionSpec as P

from tpusim.export.jax_library.layers import Array, Weights, shard


def unrolled(layer: Any, x: Any, weights: list[Any]) -> tuple[Any, None]:
    """Return the result of layers, each with weights of its own, as `lax.scan` returns it."""
    for own in weights:
        x, _ = layer(x, own)
    return x, None


def shifted(x: Array, by: int) -> Array:
    """Return x with the part of each stage on the next one, or of -1 on the one before; zeros."""
    rest = [(0, 0)] * (x.ndim - 1)
    return jnp.pad(x[:-1], [(1, 0), *rest]) if by > 0 else jnp.pad(x[1:], [(0, 1), *rest])


def circular_pipeline(
    chunk: Callable[[Array, Weights], Array],
    x: Array,
    weights: Weights,
    specs: Any,
    spec: P,
    policy: Any = None,
) -> Array:
    """Run chunks of layers on x, [microbatch, ...], with one microbatch on each stage at a time.

    Each iteration runs a chunk on every stage, and hands the results on to the next one; a
    microbatch comes round once for each chunk that a stage has. While the stages fill and drain,
    some compute what is never read. arXiv:2105.04663, section 3.3.

    weights, specs: those of all layers, [repeat, stage, layer of a chunk, ...], and their sharding.
    spec: sharding of x: the axes of the stages, and those of a microbatch.
    policy: what of an iteration is saved, which must not be the weights of its chunk, where a stage
        has several.
    """
    repeats, stages = jax.tree.leaves(weights)[0].shape[:2]
    axes, *inner = spec
    count, each = len(x), len(x) // stages
    waits, returns = repeats > 1 and count > stages, repeats > 1 and count == stages
    numbers = jnp.arange(stages)
    stage = numbers.reshape(-1, *[1] * (x.ndim - 1))

    def chosen(weights: Weights, number: Array) -> Weights:
        """Return the chunk that each stage has reached, [stage, layer of a chunk, ...]."""
        repeat = jnp.clip((number - numbers) // count, 0, repeats - 1)
        of_stage = jax.vmap(
            lambda w, n: lax.dynamic_index_in_dim(w, n, keepdims=False), (1, 0), spmd_axis_name=axes
        )
        found = jax.tree.map(lambda w: w[0] if repeats == 1 else of_stage(w, repeat), weights)
        found = jax.tree.map(lambda w, spec: shard(w, P(*tuple(spec)[1:])), found, specs)
        return checkpoint_name(found, "chunk_weights") if repeats > 1 else found

    def run(x: Array, weights: Weights, number: Array) -> Array:
        return jax.vmap(chunk, spmd_axis_name=axes)(x, chosen(weights, number))

    def iteration(state: tuple[Array, ...], number: Array) -> tuple[tuple[Array, ...], None]:
        arrived, stream, done, waiting = state
        given = stream[:, number % each]
        again = waiting[:, number % count] if waits else arrived
        first = given if repeats == 1 else jnp.where(number < count, given, again)
        made = step(shard(jnp.where(stage == 0, first, arrived), spec), weights, number)
        left = jnp.where(stage == stages - 1, made, shifted(given, -1))
        stream = shard(stream.at[:, number % each].set(left), P(axes, None, *inner))
        if waits:
            waiting = waiting.at[:, (number - stages) % count].set(jnp.roll(done, 1, axis=0))
            waiting = shard(waiting, P(axes, None, *inner))
        onward = jnp.roll(made, 1, axis=0) if returns else shifted(made, 1)
        return (shard(onward, spec), stream, made, waiting), None

    step = jax.checkpoint(run, policy=policy, prevent_cse=False) if repeats > 1 else run
    stream = shard(x.reshape(stages, each, *x.shape[1:]), P(axes, None, *inner))
    empty = shard(jnp.zeros((stages, *x.shape[1:]), x.dtype), spec)
    slots = (stages, count if waits else 0, *x.shape[1:])
    waiting = shard(jnp.zeros(slots, x.dtype), P(axes, None, *inner))
    trips = jnp.arange(count * repeats + stages - 1)
    (_, stream, _, _), _ = lax.scan(iteration, (empty, stream, empty, waiting), trips)
    return shard(jnp.roll(stream, 1 - stages, axis=1).reshape(x.shape), spec)
