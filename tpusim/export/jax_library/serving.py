"""A step of a server: attention over a cache of keys and values, and sampling."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention
from jax.sharding import PartitionSpec as P

from tpusim.export.jax_library.layers import (
    INTERPRET,
    Array,
    Weights,
    norm_and_rotary,
    rotary,
)
from tpusim.export.jax_library.step_constants import (
    CACHE,
    CACHE_SPECS,
    INPUT_SPECS,
    INPUTS,
    MESH,
    SHAPES,
    SPECS,
    TOKENS_EACH,
    VOCAB,
    server_step,
)

INT8_STEP = 1 / 16  # of an int8 cache, whose keys and values have norms


def token_positions(lengths: Array, tokens: int) -> Array:
    """Return the position of each token of a step, [rank, token], in its sequence.

    lengths: tokens of each sequence that are cached before the step, [rank, sequence].
    tokens: of each sequence in the step.
    """
    return (lengths[..., None] + jnp.arange(tokens)).reshape(len(lengths), -1)


def rotary_at(x: Array, width: int, positions: Array) -> Array:
    """Rotate the last `width` elements of x, [rank, token, ..., dim], by positions."""
    return jax.vmap(lambda own, at: rotary(own[None], width, at)[0])(x, positions)


def norm_and_rotary_at(x: Array, scale: Array, width: int, positions: Array) -> tuple[Array, Array]:
    """Split a latent from the last `width` elements; norm the one and rotate the other."""

    def each(own: Array, at: Array) -> tuple[Array, Array]:
        latent, turned = norm_and_rotary(own[None], scale, width, at)
        return latent[0], turned[0]

    made: tuple[Array, Array] = jax.vmap(each)(x, positions)
    return made


def to_cache(x: Array, dtype: Any) -> Array:
    """Return keys or values as the cache stores them."""
    if not jnp.issubdtype(dtype, jnp.integer):
        return x.astype(dtype)
    return jnp.clip(jnp.round(x / INT8_STEP), -127, 127).astype(dtype)


def from_cache(x: Array, dtype: Any) -> Array:
    """Return keys or values of the cache in another dtype."""
    made = x.astype(dtype)
    return made * jnp.asarray(INT8_STEP, dtype) if jnp.issubdtype(x.dtype, jnp.integer) else made


def attend(query: Array, key: Array, value: Array, start: Array, window: int) -> Array:
    """Return attention of queries, [sequence, token, heads, width], to cached keys and values.

    key, value: [sequence, position, K/V heads, width].
    start: position of the first query of each sequence, [sequence].
    window: keys that a query sees; 0 for all.
    """
    sequences, tokens, heads, width = query.shape
    grouped = query.reshape(sequences, tokens, key.shape[2], -1, width)
    scores = jnp.einsum("stkgd,sckd->skgtc", grouped, key, preferred_element_type=jnp.float32)
    at = (start[:, None] + jnp.arange(tokens))[:, None, None, :, None]
    place = jnp.arange(key.shape[1])
    seen = (place <= at) & (place > at - window) if window else place <= at
    weights = jax.nn.softmax(jnp.where(seen, scores * width**-0.5, -1e30)).astype(query.dtype)
    made = jnp.einsum("skgtc,sckd->stkgd", weights, value)
    return made.reshape(sequences, tokens, heads, -1)


def cached_attention(
    query: Array,
    key: Array,
    value: Array,
    cache: Weights,
    names: tuple[str, ...],
    lengths: Array,
    query_spec: P,
    key_spec: P,
    window: int = 0,
) -> tuple[Array, Weights]:
    """Return attention of the tokens of a step to their sequences, and the cache with their keys.

    query, key, value: of the step's tokens, [rank, token, heads, width].
    cache: arrays of a layer, [sequence, position, K/V heads, width].
    names: of the cached keys and values; keys alone if values are their first elements.
    lengths: tokens of each sequence that are cached before the step, [rank, sequence].

    Each device attends with its own sequences and heads.
    """
    ranks, within, stored = cache_specs(key_spec)

    def local(query: Array, lengths: Array, given: Any, caches: Any) -> tuple[Array, Any]:
        start = lengths.ravel()
        query, *given = (x.reshape(len(start), -1, *x.shape[2:]) for x in (query, *given))
        place = start[:, None] + jnp.arange(query.shape[1])
        slots = place + jnp.arange(len(start))[:, None] * caches[0].shape[1]
        caches = tuple(write_slots(old, slots, x) for old, x in zip(caches, given, strict=False))
        own = [from_cache(cached, query.dtype) for cached in caches]
        values = own[1] if len(own) > 1 else own[0][..., : given[1].shape[-1]]
        made = attend(query, own[0], values, start, window)
        return made.reshape(lengths.shape[0], -1, *made.shape[2:]), caches

    made, caches = jax.shard_map(
        local,
        in_specs=(query_spec, P(ranks, within), (key_spec, key_spec), stored),
        out_specs=(query_spec, stored),
        check_vma=False,
    )(query, lengths, (key, value), tuple(cache[name] for name in names))
    return made, {**cache, **dict(zip(names, caches, strict=True))}


def write_slots(cache: Array, slots: Array, x: Array) -> Array:
    """Return a cache, [sequence or page, token, ...], with x in slots of all its tokens."""
    flat = cache.reshape(-1, *cache.shape[2:]).at[slots.ravel()]
    given = to_cache(x, cache.dtype).reshape(-1, *cache.shape[2:])
    made = flat.set(given, mode="promise_in_bounds", unique_indices=True)
    return made.reshape(cache.shape)


def cache_specs(key_spec: P) -> tuple[Any, Any, P]:
    """Return the entries of ranks and of devices within one, and the sharding of a cache.

    key_spec: of keys, [rank, token, heads, width].
    """
    entries: tuple[Any, ...] = tuple(key_spec)
    ranks, within, heads, *_ = (*entries, None, None, None)
    axes: list[tuple[str, ...]] = [
        (each,) if isinstance(each, str) else tuple(each or ()) for each in (ranks, within)
    ]
    return ranks, within, P(axes[0] + axes[1] or None, None, heads)


def paged_attention(
    query: Array,
    key: Array,
    value: Array,
    cache: Weights,
    name: str,
    lengths: Array,
    pages: Array,
    query_spec: P,
    key_spec: P,
    window: int = 0,
    block: tuple[int, int] = (32, 512),
) -> tuple[Array, Weights]:
    """Return attention over pages of a cache, by a Pallas kernel; see `cached_attention`.

    cache: pages of a layer, [page, token, 2 x K/V heads, width]; the values of a head follow its
        keys.
    pages: those of each sequence, [rank, sequence, page], numbered on its device.
    block: queries and keys that a step of the kernel visits.
    """
    ranks, within, stored = cache_specs(key_spec)

    def local(
        query: Array, key: Array, value: Array, lengths: Array, pages: Array, cached: Array
    ) -> tuple[Array, Array]:
        start, own = lengths.ravel(), pages.reshape(-1, pages.shape[-1])
        size, flat = cached.shape[1], query.reshape(-1, *query.shape[2:])
        tokens = len(flat) // len(start)
        place = start[:, None] + jnp.arange(tokens)
        slots = jnp.take_along_axis(own, place // size, axis=1) * size + place % size
        cached = write_slots(cached, slots, jnp.stack([key, value], axis=3))
        if INTERPRET:  # a CPU has no such kernel
            found = from_cache(cached[own], flat.dtype).reshape(len(own), -1, *cached.shape[2:])
            split = flat.reshape(len(start), tokens, *flat.shape[1:])
            made = attend(split, found[:, :, ::2], found[:, :, 1::2], start, window)
            return made.reshape(query.shape), cached
        scale = INT8_STEP if jnp.issubdtype(cached.dtype, jnp.integer) else None
        made = ragged_paged_attention(
            flat,
            cached,
            start + tokens,
            own,
            jnp.arange(len(start) + 1, dtype=jnp.int32) * tokens,
            jnp.array([len(start)], jnp.int32),
            sm_scale=query.shape[-1] ** -0.5,
            sliding_window=window or None,
            k_scale=scale,
            v_scale=scale,
            num_queries_per_block=min(block[0], len(flat)),
            num_kv_pages_per_block=max(1, min(block[1] // size, own.shape[1])),
        )
        return made.reshape(query.shape), cached

    tokens_of = P(ranks, within)
    made, pages_with = jax.shard_map(
        local,
        in_specs=(query_spec, key_spec, key_spec, tokens_of, tokens_of, stored),
        out_specs=(query_spec, stored),
        check_vma=False,
    )(query, key, value, lengths, pages, cache[name])
    return made, {**cache, name: pages_with}


def layers_with_caches(
    layer: Any, x: tuple[Any, ...], weights: list[Weights]
) -> tuple[tuple[Any, ...], None]:
    """Return the result of layers, each with weights and a cache of its own, as `lax.scan` does.

    x: what the first layer is given, then the caches of all.
    """
    *state, caches = x
    made = []
    for own, cache in zip(weights, caches, strict=True):
        (*state, cache), _ = layer((*state, cache), own)
        made.append(cache)
    return (*state, made), None


def sample(logits: Array) -> Array:
    """Return the most likely token of each row."""
    return jnp.argmax(logits, axis=-1).astype(jnp.int32)


def described(table: Any) -> Any:
    """Return shape and dtype of each array of a table."""
    return jax.tree.map(
        lambda each: jax.ShapeDtypeStruct(*each), table, is_leaf=lambda x: isinstance(x, tuple)
    )


def step_arguments() -> tuple[Any, ...]:
    """Return shape and dtype of the arguments of a step: weights, cache, inputs."""
    return tuple(map(described, (SHAPES, CACHE, INPUTS)))


def argument_specs() -> tuple[Any, ...]:
    """Return the shardings of the arguments of a step."""
    return SPECS, CACHE_SPECS, INPUT_SPECS


def server_weights(key: Array) -> Weights:
    """Return weights, drawn at random; narrow ones have values in all of their range."""

    def draw(path: Any, weight: Any) -> Array:
        name = jax.tree_util.keystr(path)
        own = jax.random.fold_in(key, sum(map(ord, name)))
        if "norm" in name and "scale" in name:
            return jnp.ones(weight.shape, weight.dtype)
        if "scale" in name:
            return jnp.full(weight.shape, 0.001, weight.dtype)
        wide = jax.random.normal(own, weight.shape)
        if jnp.dtype(weight.dtype).itemsize > 1:
            return (0.02 * wide).astype(weight.dtype)
        return jnp.clip(jnp.round(20 * wide), -127, 127).astype(weight.dtype)

    return jax.tree_util.tree_map_with_path(draw, described(SHAPES))


def step_inputs(key: Array) -> dict[str, Array]:
    """Return the inputs of the first step: random tokens of sequences of which nothing is cached.

    Each row of logits is that of the last token of its sequence.
    """
    shapes = described(INPUTS)
    made = {name: jnp.zeros(each.shape, each.dtype) for name, each in shapes.items()}
    made["ids"] = jax.random.randint(key, shapes["ids"].shape, 0, VOCAB)
    rows = jnp.arange(shapes["last_tokens"].shape[1])
    last = (rows + 1) * TOKENS_EACH - 1
    made["last_tokens"] += jnp.minimum(last, shapes["ids"].shape[1] - 1)
    if "kv_pages" in made:
        _, sequences, count = shapes["kv_pages"].shape
        made["kv_pages"] += jnp.arange(sequences * count).reshape(sequences, count)
    return made


def main_of_server(steps: int = 4) -> None:
    """Run steps on random tokens; sequences that decode are continued with what they sample."""
    axes = (jax.sharding.AxisType.Auto,) * len(MESH)
    with jax.set_mesh(jax.make_mesh(tuple(MESH.values()), tuple(MESH), axis_types=axes)):
        weights = jax.jit(server_weights, out_shardings=SPECS)(jax.random.key(0))
        empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), described(CACHE))
        cache = jax.device_put(empty, CACHE_SPECS)
        batch = step_inputs(jax.random.key(1))
        step = jax.jit(server_step, donate_argnums=1, out_shardings=(CACHE_SPECS, None))
        for number in range(steps):
            cache, token = step(weights, cache, jax.device_put(batch, INPUT_SPECS))
            print(f"step {number}: tokens {token.ravel()[:8]}")
            if TOKENS_EACH > 1:
                break
            batch["kv_lengths"] += TOKENS_EACH
            batch["ids"] = jnp.resize(token, batch["ids"].shape)
