"""A BERT-like encoder of 480 billion parameters, sharded in two dimensions as GSPMD's paper does.

Weights: rows over `fsdp`, heads, mlp and vocabulary over `tensor`. Activations: batch over `fsdp`,
embed over `tensor` (arXiv:2105.04663, section 5.1, "2D sharding finalized"). Every layer is
recomputed in the backward pass.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from parts import attend, axes_of, cross_entropy, norm, shard, trained

FULL = {
    "layers": 64, "embed": 16384, "mlp": 131072, "heads": 256, "kv_heads": 1, "head_dim": 128,
    "vocab": 32768, "batch": 4096, "seq": 512,
}  # fmt: skip
SMALL = {
    "layers": 3, "embed": 1024, "mlp": 4096, "heads": 8, "kv_heads": 1, "head_dim": 128,
    "vocab": 2048, "batch": 64, "seq": 256,
}  # fmt: skip
RUNS = {
    "full": [("v4:8x16x16", {"fsdp": 256, "tensor": 8})],
    "small": [("v4:2x2x4", {"fsdp": 4, "tensor": 4}), ("v5p:2x2x4", {"fsdp": 4, "tensor": 4})],
}


def program(mesh, *, layers, embed, mlp, heads, kv_heads, head_dim, vocab, batch, seq):
    """Return one training step."""
    rows = axes_of(mesh, "dcn_data", "fsdp")

    def act(x):
        return shard(x, rows, None, "tensor")

    def layer(x, w):
        y = norm(x, w["attn_norm"])
        q, k, v = (jnp.einsum("bsd,dhk->bshk", y, w[name]) for name in ("wq", "wk", "wv"))
        y = attend(shard(q, rows, None, "tensor"), k, v, causal=False)
        x = act(x + act(jnp.einsum("bshk,hkd->bsd", y, w["wo"])))
        y = norm(x, w["mlp_norm"])
        wide = (shard(jnp.einsum("bsd,df->bsf", y, w[name]), rows, None, "tensor")
                for name in ("wi", "wg"))  # fmt: skip
        y = jnp.einsum("bsf,fd->bsd", jax.nn.gelu(next(wide)) * next(wide), w["wf"])
        return act(x + act(y)), None

    def loss(weights, ids):
        outer = ("embedding", "head", "final_norm")
        x = act(weights["embedding"][ids])
        stacked = {name: w for name, w in weights.items() if name not in outer}
        x, _ = lax.scan(jax.checkpoint(layer), x, stacked)
        x = norm(x, weights["final_norm"])
        return cross_entropy(jnp.einsum("bsd,dv->bsv", x, weights["head"]), ids)

    weights = {
        "embedding": ((vocab, embed), P("tensor", "fsdp")),
        "wq": ((layers, embed, heads, head_dim), P(None, "fsdp", "tensor")),
        "wk": ((layers, embed, kv_heads, head_dim), P(None, "fsdp")),
        "wv": ((layers, embed, kv_heads, head_dim), P(None, "fsdp")),
        "wo": ((layers, heads, head_dim, embed), P(None, "tensor", None, "fsdp")),
        "wi": ((layers, embed, mlp), P(None, "fsdp", "tensor")),
        "wg": ((layers, embed, mlp), P(None, "fsdp", "tensor")),
        "wf": ((layers, mlp, embed), P(None, "tensor", "fsdp")),
        "attn_norm": ((layers, embed), P()),
        "mlp_norm": ((layers, embed), P()),
        "final_norm": ((embed,), P()),
        "head": ((embed, vocab), P("fsdp", "tensor")),
    }
    ids = jax.ShapeDtypeStruct((batch, seq), jnp.int32)

    tokens = batch * seq
    last = 2 * tokens * embed * mlp
    one = (
        2 * tokens * embed * head_dim * (2 * heads + 2 * kv_heads)
        + 2 * 2 * tokens * seq * heads * head_dim
        + 3 * last
    )
    model = 3 * (layers * one + 2 * tokens * embed * vocab)
    return trained(
        loss, weights, (ids,), (P(rows),),
        model_flops=model,
        step_flops=model + layers * (one - last),  # the last projection is not recomputed
        expected=("all-gather", "all-reduce", "collective-permute"),
    )  # fmt: skip
