"""A scan of gelu MLPs with FSDP over four chips of v5e, compiled without them.

python scan_mlp.py | gzip -9n > scan_mlp_v5e_2x2.hlo.gz     # jax 0.10.2, libtpu 0.0.42.1
"""

import os

os.environ.update(JAX_PLATFORMS="cpu", ALLOW_MULTIPLE_LIBTPU_LOAD="1")

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

LAYERS, EMBED, MLP, TOKENS = 4, 2048, 8192, 65536


def loss(weights, x):
    @jax.checkpoint
    def layer(x, pair):
        first, second = (matrix.astype(jnp.bfloat16) for matrix in pair)
        return x + jax.nn.gelu(x @ first) @ second, None

    x, _ = jax.lax.scan(layer, x, weights)
    return jnp.sum(x.astype(jnp.float32) ** 2)


def step(weights, x):
    value, gradients = jax.value_and_grad(loss)(weights, x)
    return value, jax.tree.map(lambda old, gradient: old - 0.1 * gradient, weights, gradients)


def main():
    devices = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices
    mesh = Mesh(np.array(devices), ("fsdp",))

    def array(shape, dtype, *axes):
        sharding = NamedSharding(mesh, PartitionSpec(*axes))
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    weights = (
        array((LAYERS, EMBED, MLP), jnp.float32, None, "fsdp"),
        array((LAYERS, MLP, EMBED), jnp.float32, None, "fsdp"),
    )
    x = array((TOKENS, EMBED), jnp.bfloat16, "fsdp")
    print(jax.jit(step, donate_argnums=0).lower(weights, x).compile().as_text(), end="")


main()
