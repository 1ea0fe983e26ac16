"""One step of decoding with a cache of keys and values: one new token per sequence.

Batch over `data`, heads and mlp over `tensor`; the cache is donated. Weights are complete in each
group of `tensor`: nothing is gathered, and only sums over `tensor` are reduced. They are bf16, or
the matrices of the layers int8 with a scale for each column, converted as they are read.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from parts import BF16, F32, Program, axes_of, norm, shapes, shard, specs

FULL = {
    "layers": 80, "embed": 8192, "mlp": 28672, "heads": 64, "kv_heads": 8, "head_dim": 128,
    "vocab": 128256, "batch": 256, "context": 4096, "int8": False,
}  # fmt: skip
SMALL = {
    "layers": 3, "embed": 1024, "mlp": 4096, "heads": 16, "kv_heads": 4, "head_dim": 128,
    "vocab": 4096, "batch": 128, "context": 512, "int8": False,
}  # fmt: skip
RUNS = {
    "full": [("v5e:8x8", {"data": 8, "tensor": 8})],
    "small": [
        ("v5e:2x4", {"data": 2, "tensor": 4}), ("7x:2x2x1", {"data": 2, "tensor": 4}),
        ("v6e:2x2", {"tensor": 4}, {"int8": True}),
    ],
}  # fmt: skip
SUMMED = {"wq": 1, "wk": 1, "wv": 1, "wo": 2, "gate": 1, "up": 1, "down": 1}
"""Dimensions over which each matrix of a layer is summed, the first of it."""


def program(
    mesh, *, layers, embed, mlp, heads, kv_heads, head_dim, vocab, batch, context, int8=False
):
    """Return the step of one token for every sequence. int8: matrices of the layers are."""
    rows = axes_of(mesh, "dcn_data", "data")
    group = heads // kv_heads

    def times(subscripts, x, w, name):
        y = jnp.einsum(subscripts, x, w[name].astype(BF16))
        return y * w[f"{name}_scale"] if int8 else y

    def layer(carry, w):
        x, at = carry
        y = norm(x, w["attn_norm"])
        q, k, v = (times("bd,dhk->bhk", y, w, name) for name in ("wq", "wk", "wv"))
        keys, values = (
            lax.dynamic_update_slice_in_dim(old, new[:, None], at, axis=1)
            for old, new in ((w["keys"], k), (w["values"], v))
        )
        q = q.reshape(-1, kv_heads, group, head_dim)
        scores = jnp.einsum("bhgk,bthk->bhgt", q, keys).astype(F32) * head_dim**-0.5
        scores = jnp.where(jnp.arange(context) <= at, scores, -1e30)
        y = jnp.einsum("bhgt,bthk->bhgk", jax.nn.softmax(scores).astype(BF16), values)
        y = y.reshape(-1, heads, head_dim)
        x = shard(x + times("bhk,hkd->bd", y, w, "wo"), rows)
        y = norm(x, w["mlp_norm"])
        gate, up = (times("bd,df->bf", y, w, name) for name in ("gate", "up"))
        x = shard(x + times("bf,fd->bd", jax.nn.silu(gate) * up, w, "down"), rows)
        return (x, at), {"keys": keys, "values": values}

    def step(cache, weights, ids, at):
        outer = ("embedding", "head", "final_norm")
        stacked = {name: w for name, w in weights.items() if name not in outer}
        x = shard(weights["embedding"][ids], rows)
        (x, _), cache = lax.scan(layer, (x, at), {**stacked, **cache})
        logits = jnp.einsum("bd,dv->bv", norm(x, weights["final_norm"]), weights["head"])
        return cache, jnp.argmax(logits, axis=-1)

    weights = {
        "embedding": ((vocab, embed), P(None, "tensor")),
        "wq": ((layers, embed, heads, head_dim), P(None, None, "tensor")),
        "wk": ((layers, embed, kv_heads, head_dim), P(None, None, "tensor")),
        "wv": ((layers, embed, kv_heads, head_dim), P(None, None, "tensor")),
        "wo": ((layers, heads, head_dim, embed), P(None, "tensor")),
        "gate": ((layers, embed, mlp), P(None, None, "tensor")),
        "up": ((layers, embed, mlp), P(None, None, "tensor")),
        "down": ((layers, mlp, embed), P(None, "tensor")),
        "attn_norm": ((layers, embed), P()),
        "mlp_norm": ((layers, embed), P()),
        "final_norm": ((embed,), P()),
        "head": ((embed, vocab), P(None, "tensor")),
    }
    narrow = {name: weights.pop(name) for name in SUMMED} if int8 else {}
    for name, (shape, spec) in narrow.items():
        axes = (*spec, *[None] * (len(shape) - len(spec)))
        kept = (slice(1), slice(1 + SUMMED[name], None))
        own = tuple(sum((tuple(each[part]) for part in kept), ()) for each in (shape, axes))
        weights[f"{name}_scale"] = (own[0], P(*own[1]))

    slots = ((layers, batch, context, kv_heads, head_dim), P(None, rows, None, "tensor"))
    cache = {"keys": slots, "values": slots}

    one = 2 * batch * (embed * head_dim * (2 * heads + 2 * kv_heads) + 3 * embed * mlp)
    attention = 2 * 2 * batch * context * heads * head_dim
    flops = layers * (one + attention) + 2 * batch * embed * vocab
    return Program(
        step=step,
        args=(
            shapes(cache, BF16), shapes(weights, BF16) | shapes(narrow, jnp.int8),
            jax.ShapeDtypeStruct((batch,), jnp.int32), jax.ShapeDtypeStruct((), jnp.int32),
        ),
        shardings=(specs(cache), specs(weights | narrow), P(rows), P()),
        out_shardings=(specs(cache), P(rows)),
        model_flops=flops,
        step_flops=flops,
        expected=("all-reduce",),
    )  # fmt: skip
