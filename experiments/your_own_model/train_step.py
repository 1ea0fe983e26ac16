"""A training step of a model from the package index, compiled for a TPU slice without a TPU.

The model is penzai's Llama-like transformer, as its package ships it. This file holds what any user
adds: a config, a loss, the optimizer, and the mesh axis that shards each of the model's axes.

    python train_step.py                               Gemma 2B's shape on v5e:4x4
    python train_step.py --slice v6e:4x4 --small --out step.hlo.gz
"""

import argparse

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from penzai import pz
from penzai.models.transformer.variants.llamalike_common import (
    LlamalikeTransformerConfig,
    build_llamalike_transformer,
)

import tpusim as ts

GEMMA_2B = {
    "num_kv_heads": 1, "query_head_multiplier": 8, "embedding_dim": 2048, "projection_dim": 256,
    "mlp_hidden_dim": 16384, "num_decoder_blocks": 18, "vocab_size": 256128,
}  # fmt: skip
SMALL = {**GEMMA_2B, "num_decoder_blocks": 2, "mlp_hidden_dim": 4096, "vocab_size": 4096}

SHARDED = {
    "embedding": "fsdp", "neurons": "tensor", "query_heads": "tensor", "vocabulary": "tensor",
}  # fmt: skip
"""The mesh axis that shards each of the model's named axes; the others are not sharded."""


def model_of(sizes):
    """Return the model without its weights, and the weights without their values."""
    config = LlamalikeTransformerConfig(
        **sizes, mlp_variant="geglu_approx", tie_embedder_and_logits=True, use_layer_stack=True,
        parameter_dtype=jnp.bfloat16, activation_dtype=jnp.bfloat16,
    )  # fmt: skip
    kept = {}

    def build(key):
        model = build_llamalike_transformer(config, key)
        kept["model"], weights = pz.unbind_params(model, freeze=True)
        return weights

    weights = jax.eval_shape(build, jax.ShapeDtypeStruct((2,), jnp.uint32))
    return kept["model"], weights


def spec_of(array):
    """Return the sharding of a weight by the names of its axes; each mesh axis is used once."""
    taken = []
    for name in array.named_axes:
        axis = SHARDED.get(name)
        taken.append(None if axis in taken else axis)
    return P(*taken)


def train_step(model):
    """Return a step of plain SGD on the mean cross entropy of the next token."""

    def loss(weights, tokens):
        ids = pz.nx.wrap(tokens).tag("batch", "seq")
        logits = pz.bind_variables(model, weights)(ids).unwrap("batch", "seq", "vocabulary")
        chosen = jax.nn.log_softmax(logits[:, :-1].astype(jnp.float32))
        return -jnp.mean(jnp.take_along_axis(chosen, tokens[:, 1:, None], axis=-1))

    def step(weights, tokens):
        grads = jax.grad(loss)(weights, tokens)
        return jax.tree.map(lambda w, g: w - jnp.asarray(1e-3, w.dtype) * g, weights, grads)

    return step


def main():
    """Compile the step, print the compiler's report, and save the program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slice", default="v5e:4x4", help="such as v6e:8x8")
    parser.add_argument("--fsdp", type=int, default=4)
    parser.add_argument("--tensor", type=int, default=4)
    parser.add_argument("--small", action="store_true", help="two narrow layers")
    parser.add_argument("--out", default="step.hlo.gz")
    given = parser.parse_args()

    model, weights = model_of(SMALL if given.small else GEMMA_2B)
    shardings = jax.tree.map(spec_of, weights, is_leaf=pz.nx.is_namedarray)
    tokens = jax.ShapeDtypeStruct((16, 1024), jnp.int32)
    compiled = ts.xla.compile(
        train_step(model), weights, tokens, name="gemma",
        slice=given.slice, mesh={"fsdp": given.fsdp, "tensor": given.tensor},
        in_shardings=(shardings, P("fsdp")), out_shardings=shardings, donate=0,
    )  # fmt: skip
    print(compiled)
    compiled.save(given.out)
    print(f"\n  tpusim replay {given.out} --out report/")


if __name__ == "__main__":
    main()
