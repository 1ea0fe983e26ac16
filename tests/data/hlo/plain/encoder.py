"""A step of a small encoder with FSDP over four chips of v5e, compiled without them.

python encoder.py | gzip -9n > encoder_v5e_2x2.hlo.gz     # jax 0.10.2, libtpu 0.0.42.1
"""

import os

os.environ.update(JAX_PLATFORMS="cpu", ALLOW_MULTIPLE_LIBTPU_LOAD="1")

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

LAYERS, EMBED, MLP, HEADS, WIDTH, SEQ, BATCH, VOCAB = 4, 512, 2048, 8, 64, 256, 16, 1024


def norm(x):
    square = jnp.mean(x.astype(jnp.float32) ** 2, -1, keepdims=True)
    return x * jax.lax.rsqrt(square + 1e-6).astype(x.dtype)


def layer(x, w):
    query, key, value = (jnp.einsum("bsd,dhk->bshk", norm(x), w[name]) for name in "qkv")
    scores = jnp.einsum("bqhk,bthk->bhqt", query, key).astype(jnp.float32)
    weights = jax.nn.softmax(scores * WIDTH**-0.5, -1).astype(x.dtype)
    context = jnp.einsum("bhqt,bthk->bqhk", weights, value)
    x = x + jnp.einsum("bqhk,hkd->bqd", context, w["out"])
    hidden = jax.nn.gelu(jnp.einsum("bsd,df->bsf", norm(x), w["mlp_in"]))
    return x + jnp.einsum("bsf,fd->bsd", hidden, w["mlp_out"])


def loss(w, x, wanted):
    body = jax.checkpoint(lambda x, one: (layer(x, one), None))
    x, _ = jax.lax.scan(body, x, w["layers"])
    logits = jnp.einsum("bsd,dv->bsv", norm(x), w["head"]).astype(jnp.float32)
    return -jnp.mean(jnp.sum(jax.nn.log_softmax(logits) * wanted, -1))


def step(w, x, wanted):
    return jax.tree.map(lambda old, d: old - d, w, jax.grad(loss)(w, x, wanted))


def main():
    devices = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices
    mesh = Mesh(np.array(devices), ("fsdp",))

    def array(shape, *axes, dtype=jnp.bfloat16):
        sharding = NamedSharding(mesh, PartitionSpec(*axes))
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    layers = {name: array((LAYERS, EMBED, HEADS, WIDTH), None, "fsdp") for name in "qkv"}
    layers["out"] = array((LAYERS, HEADS, WIDTH, EMBED), None, None, None, "fsdp")
    layers["mlp_in"] = array((LAYERS, EMBED, MLP), None, "fsdp")
    layers["mlp_out"] = array((LAYERS, MLP, EMBED), None, None, "fsdp")
    w = {"layers": layers, "head": array((EMBED, VOCAB), "fsdp")}
    x = array((BATCH, SEQ, EMBED), "fsdp")
    wanted = array((BATCH, SEQ, VOCAB), "fsdp", dtype=jnp.float32)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, w)
    jitted = jax.jit(step, donate_argnums=0, out_shardings=shardings)
    print(jitted.lower(w, x, wanted).compile().as_text(), end="")


main()
