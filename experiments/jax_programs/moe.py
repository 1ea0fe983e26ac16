"""Layers of experts with GShard's dispatch: a one-hot mask, and an einsum to each expert's slots.

Each token goes to its best two experts, each with slots for `capacity` times its fair share of a
sequence; tokens beyond are dropped (arXiv:2006.16668). Experts are sharded over `expert`, their
rows over `fsdp`, and the batch over both: dispatch and combine are all-to-alls over `expert`.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from parts import BF16, F32, axes_of, norm, shard, trained

FULL = {
    "layers": 32, "embed": 4096, "mlp": 14336, "experts": 8, "batch": 256, "seq": 4096,
    "capacity": 1.25,
}  # fmt: skip
SMALL = {
    "layers": 2, "embed": 1024, "mlp": 2048, "experts": 8, "batch": 32, "seq": 512,
    "capacity": 1.25,
}  # fmt: skip
RUNS = {
    "full": [("v6e:16x16", {"fsdp": 32, "expert": 8})],
    "small": [("v6e:4x4", {"fsdp": 4, "expert": 4}), ("7x:2x2x1", {"fsdp": 2, "expert": 4})],
}
TOP = 2


def route(scores, slots):
    """Return combine weights [batch, seq, expert, slot] of router scores; zero for other tokens."""
    gates = jax.nn.softmax(scores.astype(F32))
    best, at = lax.top_k(gates, TOP)
    chosen = jax.nn.one_hot(at, gates.shape[-1], dtype=jnp.int32).sum(-2)
    place = jnp.cumsum(chosen, axis=1) * chosen - 1
    mask = jax.nn.one_hot(place, slots, dtype=BF16)
    share = gates * chosen / best.sum(-1, keepdims=True)
    return share[..., None].astype(BF16) * lax.stop_gradient(mask), mask


def program(mesh, *, layers, embed, mlp, experts, batch, seq, capacity):
    """Return one training step."""
    slots = int(capacity * TOP * seq / experts)
    rows = axes_of(mesh, "dcn_data", "fsdp", "expert")
    inside = axes_of(mesh, "dcn_data", "fsdp")

    def layer(x, w):
        y = norm(x, w["norm"])
        combine, mask = route(jnp.einsum("bsd,de->bse", y, w["router"]), slots)
        sent = shard(jnp.einsum("bsd,bsec->ebcd", y, mask), "expert", inside)
        gate, up = (jnp.einsum("ebcd,edf->ebcf", sent, w[name]) for name in ("gate", "up"))
        done = jnp.einsum("ebcf,efd->ebcd", jax.nn.silu(gate) * up, w["down"])
        done = shard(done, "expert", inside)
        return shard(x + jnp.einsum("ebcd,bsec->bsd", done, combine), rows), None

    def loss(weights, x):
        x, _ = lax.scan(jax.checkpoint(layer), x, weights)
        return jnp.mean(jnp.square(x.astype(F32)))

    weights = {
        "router": ((layers, embed, experts), P()),
        "gate": ((layers, experts, embed, mlp), P(None, "expert", "fsdp")),
        "up": ((layers, experts, embed, mlp), P(None, "expert", "fsdp")),
        "down": ((layers, experts, mlp, embed), P(None, "expert", None, "fsdp")),
        "norm": ((layers, embed), P()),
    }
    x = jax.ShapeDtypeStruct((batch, seq, embed), BF16)

    router = 2 * batch * seq * embed * experts
    masks = 2 * batch * seq * experts * slots * embed  # of dispatch, and as many of combine
    ffn = 3 * 2 * batch * experts * slots * embed * mlp
    model = layers * (3 * router + 2 * masks + 3 * masks + 3 * ffn)  # a mask has no gradient
    return trained(
        loss, weights, (x,), (P(rows),),
        model_flops=model,
        step_flops=model + layers * (router + masks + ffn),  # combine is not recomputed
        expected=("all-to-all", "all-gather", "all-reduce"),
    )  # fmt: skip
