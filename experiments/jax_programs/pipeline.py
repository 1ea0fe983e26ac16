"""A pipeline in one SPMD program: stages over `stage`, and microbatches that roll over them.

A scan of microbatches + stages - 1 iterations; in each, all stages run at once and pass their
result to the next by `jnp.roll`, a permute (arXiv:2105.04663, section 3.3). In iterations without a
microbatch of its own a stage computes too, and its result is discarded. With `dcn_stage` instead of
`stage` the permutes cross slices.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from parts import BF16, F32, axes_of, norm, shard, trained

FULL = {
    "stages": 16, "layers": 4, "embed": 8192, "mlp": 32768, "microbatches": 64, "rows": 32,
    "seq": 2048,
}  # fmt: skip
SMALL = {
    "stages": 4, "layers": 2, "embed": 1024, "mlp": 4096, "microbatches": 8, "rows": 8,
    "seq": 256,
}  # fmt: skip
RUNS = {
    "full": [("v5p:8x8x8", {"stage": 16, "fsdp": 32})],
    "small": [
        ("v6e:4x4", {"stage": 4, "fsdp": 4}),
        ("v5e:2x2 x 4", {"dcn_stage": 4, "fsdp": 4}),
    ],
}


def program(mesh, *, stages, layers, embed, mlp, microbatches, rows, seq):
    """Return one training step; layers: those of each stage."""
    along = axes_of(mesh, "dcn_stage", "stage")

    def layer(x, w):
        y = norm(x, w["norm"][:, None, None])
        y = jax.nn.gelu(jnp.einsum("nbsd,ndf->nbsf", y, w["up"]))
        return x + jnp.einsum("nbsf,nfd->nbsd", y, w["down"]), None

    def loss(weights, x):
        def trip(state, at):
            new = lax.dynamic_index_in_dim(x, jnp.minimum(at, microbatches - 1), keepdims=False)
            state = shard(state.at[0].set(new), along, "fsdp")
            state, _ = lax.scan(layer, state, weights)
            state = shard(state, along, "fsdp")
            return jnp.roll(state, 1, axis=0), state[-1]

        state = jnp.zeros((stages, rows, seq, embed), BF16)
        _, out = lax.scan(jax.checkpoint(trip), state, jnp.arange(microbatches + stages - 1))
        return jnp.mean(jnp.square(out[stages - 1 :].astype(F32)))

    weights = {
        "up": ((layers, stages, embed, mlp), P(None, along, "fsdp")),
        "down": ((layers, stages, mlp, embed), P(None, along, None, "fsdp")),
        "norm": ((layers, stages, embed), P(None, along)),
    }
    x = jax.ShapeDtypeStruct((microbatches, rows, seq, embed), BF16)

    trips = microbatches + stages - 1
    one = stages * 2 * 2 * rows * seq * embed * mlp
    model = 3 * microbatches * layers * one
    across = ("send", "recv") if "dcn_stage" in mesh else ("collective-permute",)
    return trained(
        loss, weights, (x,), (P(None, "fsdp"),),
        model_flops=model,
        step_flops=4 * trips * layers * one,
        expected=("all-gather", *across),
    )  # fmt: skip
