# %% [markdown]
# # My JAX program
#
# The TPU compiler compiles your own function, without a TPU (`pip install "tpusim[xla]"`), and the
# compiled program is replayed. Arguments are shapes: nothing is allocated.

# %%
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import tpusim as ts


def loss(weights, batch):
    hidden = jax.nn.relu(batch @ weights["in"])
    return jnp.mean((hidden @ weights["out"]) ** 2)


def step(weights, batch):
    grads = jax.grad(loss)(weights, batch)
    return jax.tree.map(lambda w, g: w - 0.01 * g, weights, grads)


weights = {
    "in": jax.ShapeDtypeStruct((8192, 32768), jnp.bfloat16),
    "out": jax.ShapeDtypeStruct((32768, 8192), jnp.bfloat16),
}
batch = jax.ShapeDtypeStruct((65536, 8192), jnp.bfloat16)
rows = {"in": P("fsdp"), "out": P(None, "fsdp")}
compiled = ts.xla.compile(
    step,
    weights,
    batch,
    slice="v5e:4x4",
    mesh={"fsdp": 16},
    in_shardings=(rows, P("fsdp")),
    out_shardings=rows,
    donate=0,
)
result = ts.simulate(compiled)
result

# %% [markdown]
# What the compiler did, and where the time goes.

# %%
print(f"{result.step_time_s * 1e3:.1f} ms a step, HFU {result.hfu:.1%}")
print(ts.explain_collectives(result))
axes = ts.plot.timeline(result)
