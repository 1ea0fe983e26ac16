"""Training steps of models from packages of JAX: what each needs for `ts.xla.compile`.

Weights and batches are shapes alone. Each function takes the sizes of one program, `FULL` or
`SMALL`, and returns a step and its arguments: weights, then the batch, which is sharded.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

BF16 = jnp.bfloat16
KEY = jax.ShapeDtypeStruct((2,), jnp.uint32)


@dataclass(frozen=True)
class Sizes:
    """Of a transformer, or of the image that a net of convolutions reads."""

    layers: int
    width: int
    heads: int
    batch: int
    length: int
    image: int
    vocabulary: int


FULL = Sizes(layers=12, width=768, heads=12, batch=64, length=512, image=224, vocabulary=32768)
SMALL = Sizes(layers=1, width=128, heads=2, batch=8, length=128, image=32, vocabulary=512)

Made = tuple[Callable[..., Any], tuple[Any, ...]]


def descend(loss: Callable[..., Any]) -> Callable[..., Any]:
    """Return a step of gradient descent: what no package decides."""

    def step(weights: Any, *batch: Any) -> Any:
        gradients = jax.grad(loss)(weights, *batch)
        return jax.tree.map(lambda weight, by: weight - 1e-3 * by, weights, gradients)

    return step


def hidden(sizes: Sizes) -> Any:
    """Return a batch of embedded tokens."""
    return jax.ShapeDtypeStruct((sizes.batch, sizes.length, sizes.width), BF16)


def images(sizes: Sizes, channels_first: bool = False) -> Any:
    """Return a batch of images."""
    side = sizes.image
    shape = (3, side, side) if channels_first else (side, side, 3)
    return jax.ShapeDtypeStruct((sizes.batch, *shape), BF16)


def square(found: Any) -> Any:
    """Return a loss of any result."""
    return jnp.square(found.astype(jnp.float32)).mean()


def nnx(sizes: Sizes) -> Made:
    """Return an encoder of `nnx.MultiHeadAttention`."""
    from flax import nnx

    class Block(nnx.Module):
        def __init__(self, rngs):
            given = {"dtype": BF16, "param_dtype": BF16, "rngs": rngs}
            self.norm, self.middle = (nnx.LayerNorm(sizes.width, **given) for _ in range(2))
            self.attention = nnx.MultiHeadAttention(sizes.heads, sizes.width, decode=False, **given)
            self.up = nnx.Linear(sizes.width, 4 * sizes.width, **given)
            self.down = nnx.Linear(4 * sizes.width, sizes.width, **given)

        def __call__(self, x):
            x = x + self.attention(self.norm(x))
            return x + self.down(nnx.gelu(self.up(self.middle(x))))

    class Encoder(nnx.Module):
        def __init__(self, rngs):
            self.blocks = nnx.List([Block(rngs) for _ in range(sizes.layers)])

        def __call__(self, x):
            for block in self.blocks:
                x = block(x)
            return x

    graph, weights, rest = nnx.split(nnx.eval_shape(lambda: Encoder(nnx.Rngs(0))), nnx.Param, ...)
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.uint32), rest)
    zeros = jax.tree.map(
        lambda leaf, old: jax.random.key(0) if jnp.issubdtype(old.dtype, jax.dtypes.prng_key)
        else leaf.astype(old.dtype), zeros, rest,
    )  # fmt: skip
    return descend(lambda w, x: square(nnx.merge(graph, w, zeros)(x))), (weights, hidden(sizes))


def linen(sizes: Sizes) -> Made:
    """Return an encoder of `nn.MultiHeadDotProductAttention`."""
    from flax import linen as nn

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x):
            given = {"dtype": BF16, "param_dtype": BF16}
            x = x + nn.MultiHeadDotProductAttention(sizes.heads, **given)(nn.LayerNorm(**given)(x))
            wide = nn.gelu(nn.Dense(4 * sizes.width, **given)(nn.LayerNorm(**given)(x)))
            return x + nn.Dense(sizes.width, **given)(wide)

    model = nn.Sequential([Block() for _ in range(sizes.layers)])
    weights = jax.eval_shape(model.init, KEY, hidden(sizes))
    return descend(lambda w, x: square(model.apply(w, x))), (weights, hidden(sizes))


def equinox(sizes: Sizes) -> Made:
    """Return an encoder of `eqx.nn.MultiheadAttention`, which has no batch."""
    import equinox as eqx

    class Block(eqx.Module):
        attention: eqx.nn.MultiheadAttention
        mlp: eqx.nn.MLP
        norms: list

        def __init__(self, key):
            self.attention = eqx.nn.MultiheadAttention(sizes.heads, sizes.width, key=key)
            self.mlp = eqx.nn.MLP(sizes.width, sizes.width, 4 * sizes.width, 1, key=key)
            self.norms = [eqx.nn.LayerNorm(sizes.width) for _ in range(2)]

        def __call__(self, x):
            y = jax.vmap(self.norms[0])(x).astype(BF16)
            x = x + self.attention(y, y, y)
            return x + jax.vmap(self.mlp)(jax.vmap(self.norms[1])(x).astype(BF16))

    made = eqx.filter_eval_shape(lambda key: [Block(key) for _ in range(sizes.layers)], KEY)
    weights, rest = eqx.partition(made, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))
    weights = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, BF16), weights)

    def loss(weights, x):
        for block in eqx.combine(weights, rest):
            x = jax.vmap(block)(x)
        return square(x)

    return descend(loss), (weights, hidden(sizes))


def haiku(sizes: Sizes) -> Made:
    """Return one of `hk.nets`."""
    import haiku as hk

    net = hk.nets.ResNet200 if sizes is FULL else hk.nets.ResNet18
    model = hk.transform_with_state(lambda x: net(10)(x, is_training=True))
    weights, state = jax.eval_shape(model.init, KEY, images(sizes))

    def loss(weights, x, state):
        return square(model.apply(weights, state, None, x)[0])

    return descend(loss), (weights, images(sizes), state)


def keras(sizes: Sizes) -> Made:
    """Return an encoder of `keras.layers`, with Keras on JAX."""
    import os

    os.environ["KERAS_BACKEND"] = "jax"
    from keras import Input, Model, layers, mixed_precision

    mixed_precision.set_global_policy("mixed_bfloat16")
    x = given = Input((sizes.length, sizes.width))
    for _ in range(sizes.layers):
        y = layers.LayerNormalization()(x)
        x += layers.MultiHeadAttention(sizes.heads, sizes.width // sizes.heads)(y, y)
        y = layers.Dense(4 * sizes.width, "gelu")(layers.LayerNormalization()(x))
        x += layers.Dense(sizes.width)(y)
    model = Model(given, x)
    weights, fixed = (
        [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in variables]
        for variables in (model.trainable_variables, model.non_trainable_variables)
    )

    def loss(weights, x, fixed):
        return square(model.stateless_call(weights, fixed, x, training=True)[0])

    return descend(loss), (weights, hidden(sizes), fixed)


def penzai(sizes: Sizes) -> Made:
    """Return penzai's Llama-like transformer."""
    from penzai import pz
    from penzai.models.transformer.variants import llamalike_common as llama

    config = llama.LlamalikeTransformerConfig(
        num_kv_heads=sizes.heads, query_head_multiplier=1, embedding_dim=sizes.width,
        projection_dim=64, mlp_hidden_dim=3 * sizes.width, num_decoder_blocks=sizes.layers,
        vocab_size=sizes.vocabulary, mlp_variant="swiglu", tie_embedder_and_logits=True,
        parameter_dtype=BF16, activation_dtype=BF16, use_layer_stack=True,
    )  # fmt: skip
    kept = {}

    def build(key):
        kept["model"], weights = pz.unbind_params(
            llama.build_llamalike_transformer(config, key), freeze=True
        )
        return weights

    weights = jax.eval_shape(build, KEY)

    def loss(weights, tokens):
        logits = pz.bind_variables(kept["model"], weights)(
            pz.nx.wrap(tokens).tag("batch", "seq"),
            token_positions=pz.nx.wrap(jnp.arange(sizes.length)).tag("seq"),
        )
        return square(logits.unwrap("batch", "seq", "vocabulary"))

    tokens = jax.ShapeDtypeStruct((sizes.batch, sizes.length), jnp.int32)
    return descend(loss), (weights, tokens)


def equimo(sizes: Sizes) -> Made:
    """Return equimo's ViT, of patches of 16 x 16."""
    import equinox as eqx
    from equimo.models import VisionTransformer

    build = partial(
        VisionTransformer, img_size=sizes.image, in_channels=3, dim=sizes.width, patch_size=16,
        num_heads=sizes.heads, depths=[sizes.layers],
    )  # fmt: skip
    made = eqx.filter_eval_shape(lambda key: build(key=key), KEY)
    weights, rest = eqx.partition(made, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))
    weights = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, BF16), weights)

    def loss(weights, x):
        model = eqx.combine(weights, rest)
        return square(jax.vmap(lambda one: model(one, key=jax.random.PRNGKey(0)))(x))

    return descend(loss), (weights, images(sizes, channels_first=True))


def tunix(sizes: Sizes) -> Made:
    """Return tunix's Qwen 3."""
    from flax import nnx
    from tunix.models.qwen3 import model as qwen

    config = qwen.ModelConfig(
        num_layers=sizes.layers, vocab_size=sizes.vocabulary, embed_dim=sizes.width,
        hidden_dim=3 * sizes.width, num_heads=sizes.heads, head_dim=64, num_kv_heads=sizes.heads,
        rope_theta=1_000_000, norm_eps=1e-6,
    )  # fmt: skip
    made = nnx.eval_shape(lambda: qwen.Qwen3(config, rngs=nnx.Rngs(0)))
    graph, weights = nnx.split(made)
    weights = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, BF16), weights)

    def loss(weights, tokens):
        at = jnp.broadcast_to(jnp.arange(sizes.length), tokens.shape)
        causal = jnp.tril(jnp.ones((sizes.length, sizes.length), bool))
        mask = jnp.broadcast_to(causal, (sizes.batch, sizes.length, sizes.length))
        return square(nnx.merge(graph, weights)(tokens, at, None, mask)[0])

    tokens = jax.ShapeDtypeStruct((sizes.batch, sizes.length), jnp.int32)
    return descend(loss), (weights, tokens)


PROGRAMS: dict[str, tuple[str, Callable[[Sizes], Made]]] = {
    "nnx": ("flax", nnx),
    "linen": ("flax", linen),
    "equinox": ("equinox", equinox),
    "haiku": ("dm-haiku", haiku),
    "keras": ("keras", keras),
    "penzai": ("penzai", penzai),
    "tunix": ("google-tunix", tunix),
    "equimo": ("equimo", equimo),
}
"""The package and the program, by name."""
