"""Layers of splash attention over four chips of v5e, compiled without them by an older compiler.

Queries are grouped, a checkpoint recomputes the layers, and blocks are of 256 x 512.

python splash.py two FOLDER     # jax 0.5.3, libtpu 0.0.11.1; `fused` for one backward kernel

The files are the program and, for `before_code`, `*after_buffer_assignment.txt` of the dump in
FOLDER, with `gzip -9n` and the paths of the machine cut off.
"""

import os
import sys

os.environ.update(JAX_PLATFORMS="cpu", TPU_SKIP_MDS_QUERY="1")

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jax.experimental.shard_map import shard_map
from jax.sharding import Mesh, NamedSharding, PartitionSpec

HEADS, KEY_HEADS, SEQUENCE, WIDTH, EMBED, LAYERS, BATCH = 8, 4, 1024, 128, 512, 4, 8
QUERIES, KEYS = 256, 512


def kernel(fused):
    sizes = splash.BlockSizes(
        block_q=QUERIES, block_kv=KEYS, block_kv_compute=QUERIES,
        block_q_dkv=QUERIES, block_kv_dkv=KEYS, block_kv_dkv_compute=QUERIES,
        block_q_dq=None if fused else QUERIES, block_kv_dq=None if fused else KEYS,
        use_fused_bwd_kernel=fused,
    )  # fmt: skip
    mask = masks.MultiHeadMask([masks.CausalMask((SEQUENCE, SEQUENCE))] * HEADS)
    return splash.make_splash_mha(mask=mask, head_shards=1, q_seq_shards=1, block_sizes=sizes)


def main(kind, folder):
    devices = topologies.get_topology_desc("v5e:2x2", platform="tpu").devices
    mesh, data = Mesh(np.array(devices), ("data",)), PartitionSpec("data")
    attend = shard_map(
        jax.vmap(kernel(kind == "fused")), mesh, in_specs=data, out_specs=data, check_rep=False
    )

    @jax.checkpoint
    def layer(x, weights):
        wq, wk, wo = weights
        queries = jnp.einsum("bse,ehd->bhsd", x, wq) * WIDTH**-0.5
        keys = jnp.einsum("bse,ehd->bhsd", x, wk)
        return x + jnp.einsum("bhsd,hde->bse", attend(queries, keys, keys), wo), None

    def loss(weights, x):
        return jnp.mean(jax.lax.scan(layer, x, weights)[0].astype(jnp.float32) ** 2)

    def step(weights, x):
        value, gradients = jax.value_and_grad(loss)(weights, x)
        return jax.tree.map(lambda old, new: old - 0.001 * new, weights, gradients), value

    def array(shape, *axes):
        sharding = NamedSharding(mesh, PartitionSpec(*axes))
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=sharding)

    weights = (
        array((LAYERS, EMBED, HEADS, WIDTH), None, "data"),
        array((LAYERS, EMBED, KEY_HEADS, WIDTH), None, "data"),
        array((LAYERS, HEADS, WIDTH, EMBED), None, None, None, "data"),
    )
    lowered = jax.jit(step, donate_argnums=0).lower(
        weights, array((BATCH, SEQUENCE, EMBED), "data")
    )
    options = {"xla_dump_to": folder, "xla_dump_hlo_as_text": True}
    print(lowered.compile(compiler_options=options).as_text())


main(*sys.argv[1:])
