"""A Llama-like decoder: weights and batch over `fsdp`, heads and mlp over `tensor`.

With `splash`, attention is JAX's splash kernel, written in Pallas, else XLA's. Every layer is
recomputed in the backward pass. With `dcn_data` the batch is sharded over slices too.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jax.sharding import PartitionSpec as P
from parts import attend, axes_of, cross_entropy, norm, rotary, shard, trained

FULL = {
    "layers": 32, "embed": 4096, "mlp": 14336, "heads": 32, "kv_heads": 8, "head_dim": 128,
    "vocab": 128256, "batch": 128, "seq": 4096, "splash": True,
}  # fmt: skip
SMALL = {
    "layers": 3, "embed": 1024, "mlp": 4096, "heads": 8, "kv_heads": 4, "head_dim": 128,
    "vocab": 4096, "batch": 16, "seq": 512, "splash": False,
}  # fmt: skip
RUNS = {
    "full": [("v5e:16x16", {"fsdp": 64, "tensor": 4})],
    "small": [
        ("v5p:2x2x1", {"fsdp": 4, "tensor": 1}, {"splash": True}),
        ("v4:2x2x1", {"fsdp": 2, "tensor": 2}),
        ("v5e:2x2 x 2", {"dcn_data": 2, "fsdp": 4, "tensor": 1}),
    ],
}


def splash_attention(q, k, v, specs):
    """Compute causal attention in the kernel, on the heads of each device."""
    block = min(512, q.shape[1])
    sizes = kernels.BlockSizes(**dict.fromkeys(
        ("block_q", "block_kv", "block_kv_compute", "block_q_dkv", "block_kv_dkv",
         "block_kv_dkv_compute", "block_q_dq", "block_kv_dq"), block))  # fmt: skip

    def local(q, k, v):
        causal = masks.CausalMask((q.shape[1], q.shape[1]))
        kernel = kernels.make_splash_mha(
            mask=masks.MultiHeadMask([causal] * q.shape[2]), head_shards=1, q_seq_shards=1,
            block_sizes=sizes,
        )  # fmt: skip
        q, k, v = (t.swapaxes(1, 2) for t in (q * q.shape[-1] ** -0.5, k, v))
        return jax.vmap(kernel)(q, k, v).swapaxes(1, 2)

    return jax.shard_map(
        local, in_specs=(specs, specs, specs), out_specs=specs, check_vma=False
    )(q, k, v)  # fmt: skip


def program(mesh, *, layers, embed, mlp, heads, kv_heads, head_dim, vocab, batch, seq, splash):
    """Return one training step."""
    rows = axes_of(mesh, "dcn_data", "fsdp")

    def layer(x, w):
        y = norm(x, w["attn_norm"])
        q, k, v = (
            shard(jnp.einsum("bsd,dhk->bshk", y, w[name]), rows, None, "tensor")
            for name in ("wq", "wk", "wv")
        )
        q, k = rotary(q), rotary(k)
        if splash:
            y = splash_attention(q, k, v, P(rows, None, "tensor"))
        else:
            y = attend(q, k, v, causal=True)
        x = shard(x + jnp.einsum("bshk,hkd->bsd", y, w["wo"]), rows)
        y = norm(x, w["mlp_norm"])
        gate, up = (shard(jnp.einsum("bsd,df->bsf", y, w[name]), rows, None, "tensor")
                    for name in ("gate", "up"))  # fmt: skip
        x = x + jnp.einsum("bsf,fd->bsd", jax.nn.silu(gate) * up, w["down"])
        return shard(x, rows), None

    def loss(weights, ids):
        outer = ("embedding", "head", "final_norm")
        x = shard(weights["embedding"][ids], rows)
        stacked = {name: w for name, w in weights.items() if name not in outer}
        x, _ = lax.scan(jax.checkpoint(layer), x, stacked)
        x = norm(x, weights["final_norm"])
        return cross_entropy(jnp.einsum("bsd,dv->bsv", x, weights["head"]), ids)

    weights = {
        "embedding": ((vocab, embed), P("tensor", "fsdp")),
        "wq": ((layers, embed, heads, head_dim), P(None, "fsdp", "tensor")),
        "wk": ((layers, embed, kv_heads, head_dim), P(None, "fsdp", "tensor")),
        "wv": ((layers, embed, kv_heads, head_dim), P(None, "fsdp", "tensor")),
        "wo": ((layers, heads, head_dim, embed), P(None, "tensor", None, "fsdp")),
        "gate": ((layers, embed, mlp), P(None, "fsdp", "tensor")),
        "up": ((layers, embed, mlp), P(None, "fsdp", "tensor")),
        "down": ((layers, mlp, embed), P(None, "tensor", "fsdp")),
        "attn_norm": ((layers, embed), P()),
        "mlp_norm": ((layers, embed), P()),
        "final_norm": ((embed,), P()),
        "head": ((embed, vocab), P("fsdp", "tensor")),
    }
    ids = jax.ShapeDtypeStruct((batch, seq), jnp.int32)

    tokens = batch * seq
    last = 2 * tokens * embed * mlp
    seen = seq / 2 if splash else seq  # the kernel skips masked blocks, XLA computes them
    attention = 2 * 2 * tokens * seen * heads * head_dim
    one = 2 * tokens * embed * head_dim * (2 * heads + 2 * kv_heads) + attention + 3 * last
    model = 3 * (layers * one + 2 * tokens * embed * vocab)
    across = ("send", "recv") if "dcn_data" in mesh else ()
    return trained(
        loss, weights, (ids,), (P(rows),),
        model_flops=model,
        step_flops=model + layers * (one - last),  # the last projection is not recomputed
        expected=("all-gather", "all-reduce", *across),
    )  # fmt: skip
