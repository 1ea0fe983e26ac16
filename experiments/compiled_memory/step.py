"""The training step of a run file in plain JAX: scanned layers, loss, optimizer, shardings.

It follows tpusim's transformer operation by operation, and its default sharding rules.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import mesh_utils, topologies
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

BF16, F32 = jnp.bfloat16, jnp.float32
DTYPES = {"bf16": BF16, "f32": F32}

AXES = {
    "weights": {
        "vocab": ("tensor",), "embed": ("fsdp",), "heads": ("tensor",), "kv_heads": ("tensor",),
        "mlp": ("tensor",),
    },
    "activations": {
        "batch": ("data", "fsdp"), "vocab": ("tensor",), "heads": ("tensor",),
        "kv_heads": ("tensor",), "mlp": ("tensor",),
    },
}  # fmt: skip
"""The rules of tpusim/plan/default_rules.py. A dimension smaller than its axes is not sharded."""


class Step:
    """The training step of one run file: weights, optimizer and loss, with their shardings."""

    def __init__(self, run, mesh):
        self.model = {"gated": True, "rotary": True, "attention": "flash", "activation": "silu",
                      "kind": "decoder", "softmax_dtype": "compute", **run["model"]}  # fmt: skip
        self.plan = {"microbatches": 1, "remat": "full", "save": [], "offload": [], "rules": {},
                     "optimizer": "adam", "param_dtype": "f32", "moment_dtype": "f32",
                     "grad_dtype": "bf16", **run["plan"]}  # fmt: skip
        m = self.model
        m.setdefault("kv_heads", m["heads"])
        m.setdefault("head_dim", m["embed"] // m["heads"])
        self.mesh = mesh
        batch = self.plan["global_batch"] // self.plan["microbatches"]
        self.sizes = {**m, "batch": batch, "seq": self.plan["seq_len"]}

    def spec(self, kind, *dims):
        """Return the sharding of a tensor of these dimensions; each axis is used once."""
        rules = dict(AXES[kind])
        for key, axes in self.plan["rules"].items():
            if key.startswith("act_") == (kind == "activations"):
                rules[key.removeprefix("act_")] = (axes,) if isinstance(axes, str) else tuple(axes)
        taken, parts = set(), []
        for dim in dims:
            axes = [a for a in rules.get(dim, ()) if a in self.mesh.shape and a not in taken]
            while axes and np.prod([self.mesh.shape[a] for a in axes]) > self.sizes[dim]:
                axes.pop()
            taken.update(axes)
            parts.append(tuple(axes) or None)
        return NamedSharding(self.mesh, PartitionSpec(*parts))

    def act(self, x, name, *dims):
        """Name an activation for the remat policy, and shard it by the rules."""
        x = lax.with_sharding_constraint(x, self.spec("activations", *dims))
        return checkpoint_name(x, name)

    def weights(self):
        """Return name -> shape, dtype and sharding of each weight; layers are stacked."""
        attend = ("wo", ("heads", "head_dim", "embed"))
        wide = {"wi_0": ("embed", "mlp"), "wi_1": ("embed", "mlp")}
        layer = {
            "wq": ("embed", "heads", "head_dim"), "wk": ("embed", "kv_heads", "head_dim"),
            "wv": ("embed", "kv_heads", "head_dim"), **dict([attend]),
            **(wide if self.model["gated"] else {"wi": ("embed", "mlp")}),
            "wo_mlp": ("mlp", "embed"), "attn_norm": ("norm",), "mlp_norm": ("norm",),
        }  # fmt: skip
        outer = {
            "embedding": ("vocab", "embed"), "head": ("embed", "vocab"), "final_norm": ("norm",)
        }  # fmt: skip
        stacked = {f"layers/{name}": ("layers", *dims) for name, dims in layer.items()}
        return {name: self.abstract("weights", dims) for name, dims in (outer | stacked).items()}

    def abstract(self, kind, dims, dtype=None):
        """Return a tensor of these dimensions, without values."""
        sizes = {**self.sizes, "norm": self.model["embed"]}
        dtype = dtype or DTYPES[self.plan["param_dtype"]]
        shape = tuple(sizes[dim] for dim in dims)
        return jax.ShapeDtypeStruct(shape, dtype, sharding=self.spec(kind, *dims))

    def state(self):
        """Return the state of a step: weights and the optimizer's moments."""
        weights = self.weights()
        as_moment = partial(_like, dtype=DTYPES[self.plan["moment_dtype"]])
        if self.plan["optimizer"] == "adam":
            moments = [{k: as_moment(w) for k, w in weights.items()} for _ in range(2)]
        else:
            moments = {
                k: tuple(as_moment(w, drop=axes) for axes in _means(k, w))
                for k, w in weights.items()
            }
        return weights, moments

    def ids(self):
        """Return the tokens of a step, by microbatch."""
        one = self.abstract("activations", ("batch", "seq"), jnp.int32)
        sharding = NamedSharding(self.mesh, PartitionSpec(None, *one.sharding.spec))
        shape = (self.plan["microbatches"], *one.shape)
        return jax.ShapeDtypeStruct(shape, jnp.int32, sharding=sharding)

    def layer(self, x, w):
        """Compute one layer; `w` holds its weights."""
        m, residual = self.model, ("batch", "seq", "embed")
        w = {name: a.astype(BF16) for name, a in w.items()}
        kv = "kv_heads" if m["kv_heads"] < m["heads"] else "heads"
        x = self.act(x, "layer_in", *residual)
        y = self.act(norm(x, w["attn_norm"]), "attn_norm", *residual)
        q, k, v = (
            self.act(
                jnp.einsum("bsd,dhk->bshk", y, w[f"w{n}"]), n, "batch", "seq", heads, "head_dim"
            )
            for n, heads in (("q", "heads"), ("k", kv), ("v", kv))
        )
        if m["rotary"]:
            q, k = (checkpoint_name(rotary(t), f"{n}_rotary") for n, t in (("q", q), ("k", k)))
        attend = self.flash if m["attention"] == "flash" else self.dot
        y = self.act(attend(q, k, v), "context", "batch", "seq", "heads", "head_dim")
        y = self.act(jnp.einsum("bshk,hkd->bsd", y, w["wo"]), "out", *residual)
        x = self.act(x + y, "mid", *residual)
        y = self.act(norm(x, w["mlp_norm"]), "mlp_norm", *residual)
        names = ("0", "1") if m["gated"] else ("",)
        ins = [
            self.act(jnp.einsum("bsd,df->bsf", y, w["wi_" + n if n else "wi"]),
                     "mlp_in_" + n if n else "mlp_in", "batch", "seq", "mlp")
            for n in names
        ]  # fmt: skip
        y = getattr(jax.nn, m["activation"])(ins[0])
        y = self.act(y * ins[1] if m["gated"] else y, "mlp_hidden", "batch", "seq", "mlp")
        y = self.act(jnp.einsum("bsf,fd->bsd", y, w["wo_mlp"]), "mlp_out", *residual)
        return lax.with_sharding_constraint(x + y, self.spec("activations", *residual)), None

    def dot(self, q, k, v):
        """Compute attention as XLA does: scores in HBM, causal ones in full."""
        wide = DTYPES[self.model["softmax_dtype"].replace("compute", "bf16")]
        shared = q.shape[2] // k.shape[2]
        k, v = (jnp.repeat(t, shared, axis=2) if shared > 1 else t for t in (k, v))
        scores = checkpoint_name(jnp.einsum("bqhk,bthk->bhqt", q, k), "scores").astype(wide)
        if self.model["kind"] == "decoder":
            seen = jnp.tri(q.shape[1], dtype=bool)
            scores = jnp.where(seen, scores, -1e30)
        probs = checkpoint_name(jax.nn.softmax(scores * q.shape[-1] ** -0.5).astype(BF16), "probs")
        return jnp.einsum("bhqt,bthk->bqhk", probs, v)

    def flash(self, q, k, v):
        """Compute attention in JAX's splash kernel, on the shard of each device."""
        specs = [self.spec("activations", "batch", "seq", "heads", "head_dim").spec,
                 self.spec("activations", "batch", "seq", "kv_heads", "head_dim").spec]  # fmt: skip
        mask = masks.CausalMask if self.model["kind"] == "decoder" else masks.FullMask
        heads = self.spec("activations", "heads").shard_shape((q.shape[2],))[0]
        each = mask((q.shape[1], q.shape[1]))
        block = min(512, q.shape[1])
        sizes = splash.BlockSizes(**dict.fromkeys(
            ("block_q", "block_kv", "block_kv_compute", "block_q_dkv", "block_kv_dkv",
             "block_kv_dkv_compute", "block_q_dq", "block_kv_dq"), block))  # fmt: skip
        kernel = splash.make_splash_mha(
            mask=masks.MultiHeadMask([each] * heads), head_shards=1, q_seq_shards=1,
            block_sizes=sizes,
        )  # fmt: skip

        def local(q, k, v):
            q, k, v = (t.swapaxes(1, 2) for t in (q * q.shape[-1] ** -0.5, k, v))
            return jax.vmap(kernel)(q, k, v).swapaxes(1, 2)

        return jax.shard_map(
            local, mesh=self.mesh, in_specs=(specs[0], specs[1], specs[1]), out_specs=specs[0],
            check_vma=False,
        )(q, k, v)  # fmt: skip

    def policy(self):
        """Return the plan's rematerialisation as a JAX policy."""
        policies, plan = jax.checkpoint_policies, self.plan
        if plan["offload"]:
            return policies.save_and_offload_only_these_names(
                names_which_can_be_saved=plan["save"], names_which_can_be_offloaded=plan["offload"],
                offload_src="device", offload_dst="pinned_host",
            )  # fmt: skip
        kept = {
            "full": policies.nothing_saveable, "dots": policies.dots_saveable,
            "minimal": policies.dots_with_no_batch_dims_saveable,
        }[plan["remat"]]  # fmt: skip
        names = policies.save_only_these_names(*plan["save"])
        return policies.save_from_both_policies(kept, names) if plan["save"] else kept

    def loss(self, weights, ids):
        """Return the mean cross entropy in f32; gradients have the dtype of the scan's input."""
        narrow = BF16 if self.plan["grad_dtype"] == "bf16" else F32
        stacked = {k.removeprefix("layers/"): w.astype(narrow)
                   for k, w in weights.items() if k.startswith("layers/")}  # fmt: skip
        x = weights["embedding"].astype(BF16)[ids]
        x = lax.with_sharding_constraint(x, self.spec("activations", "batch", "seq", "embed"))
        layer = self.layer
        if self.plan["remat"] != "none":
            layer = jax.checkpoint(layer, policy=self.policy())
        x, _ = lax.scan(layer, x, stacked)
        x = norm(x, weights["final_norm"].astype(BF16))
        logits = jnp.einsum("bsd,dv->bsv", x, weights["head"].astype(BF16))
        logits = self.act(logits, "logits", "batch", "seq", "vocab").astype(F32)
        at_id = jnp.sum(logits * jax.nn.one_hot(ids, logits.shape[-1]), axis=-1)
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - at_id)

    def gradients(self, weights, ids):
        """Return gradients of one microbatch, or their sum over all, in the dtype of the plan."""
        dtype = DTYPES[self.plan["grad_dtype"]]

        def grad(ids):
            return jax.tree.map(lambda g: g.astype(dtype), jax.grad(self.loss)(weights, ids))

        def add(total, ids):
            return jax.tree.map(jnp.add, total, grad(ids)), None

        if self.plan["microbatches"] == 1:
            return grad(ids[0])
        shardings = {name: w.sharding for name, w in self.weights().items()}
        zeros = {name: jnp.zeros(w.shape, dtype) for name, w in weights.items()}
        return lax.scan(add, lax.with_sharding_constraint(zeros, shardings), ids)[0]

    def __call__(self, state, ids):
        """Return the state after one step."""
        weights, moments = state
        grads = self.gradients(weights, ids)
        update = adam if self.plan["optimizer"] == "adam" else adafactor
        return update(weights, moments, grads)


def _like(one, dtype, drop=()):
    """Return a tensor without some of the dimensions of another."""
    keep = [i for i in range(len(one.shape)) if i not in drop]
    spec = (*one.sharding.spec, *[None] * len(one.shape))
    sharding = NamedSharding(one.sharding.mesh, PartitionSpec(*(spec[i] for i in keep)))
    return jax.ShapeDtypeStruct(tuple(one.shape[i] for i in keep), dtype, sharding=sharding)


def _means(name, weight):
    """Return the dimensions that Adafactor's two means reduce: the last one, and all others."""
    if "norm" in name:
        return ((),)
    last, first = len(weight.shape) - 1, 1 if name.startswith("layers/") else 0
    return (last,), tuple(range(first, last))


def norm(x, scale):
    """Return the root mean square norm, computed in f32."""
    wide = x.astype(F32)
    return (wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)).astype(BF16) * scale


def rotary(x):
    """Return the rotary embedding over the two halves of each head."""
    half = x.shape[-1] // 2
    angle = jnp.arange(x.shape[1])[:, None] * 1e4 ** (-jnp.arange(half) / half)
    sin, cos = jnp.sin(angle)[:, None], jnp.cos(angle)[:, None]
    a, b = jnp.split(x.astype(F32), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


def adam(weights, moments, grads):
    """Update by Adam of Kingma and Ba (arXiv:1412.6980, algorithm 1), without bias correction."""
    first, second, made = {}, {}, {}
    for key, weight in weights.items():
        g = grads[key].astype(F32)
        m = 0.9 * moments[0][key].astype(F32) + 0.1 * g
        v = 0.95 * moments[1][key].astype(F32) + 0.05 * g * g
        made[key] = (weight - 1e-4 * m / (jnp.sqrt(v) + 1e-8)).astype(weight.dtype)
        first[key], second[key] = m.astype(moments[0][key].dtype), v.astype(moments[1][key].dtype)
    return made, [first, second]


def adafactor(weights, moments, grads):
    """Update by Adafactor, Shazeer and Stern (arXiv:1804.04235, algorithm 4), with its clipping."""
    made, kept = {}, {}
    for key, weight in weights.items():
        g = grads[key].astype(F32)
        square, over = g * g + 1e-30, _means(key, weight)
        means = tuple(
            0.99 * old + 0.01 * jnp.mean(square, axis=axes)
            for old, axes in zip(moments[key], over, strict=True)
        )
        scale = 1.0
        for mean, axes in zip(means, over, strict=True):
            scale *= lax.rsqrt(jnp.expand_dims(mean, axes))
        if len(means) == 2:
            scale *= jnp.sqrt(jnp.mean(means[0]))
        step = g * scale
        step /= jnp.maximum(1.0, jnp.sqrt(jnp.mean(step * step)))
        made[key], kept[key] = (weight - 1e-3 * step).astype(weight.dtype), means
    return made, kept


TOPOLOGY = {
    "v4": ("v4", {"chip_config_name": "megacore", "chips_per_host_bounds": (2, 2, 1)}),
    "7x": ("tpu7x", {}),
}
"""The names of chips in libtpu, and the options that make a v4 megacore chip one device."""


def devices_of(chip, topology):
    """Return the devices of a slice, without its hardware."""
    name, others = TOPOLOGY.get(chip, (chip, {}))
    return topologies.get_topology_desc(
        platform="tpu", topology_name=f"{name}:{topology}", **others
    ).devices


def refusal(jitted, *arguments):
    """Return the compiler's message if a function needs too much HBM, else an empty string."""
    try:
        jitted.lower(*arguments).compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return str(error)
    return ""


def compile_step(run):
    """Compile the step of a run file's tables; return the message of a refusal, or nothing."""
    devices = devices_of(run["slice"]["chip"], run["slice"]["topology"])
    axes = run["plan"]["mesh"]
    grid = mesh_utils.create_device_mesh(
        tuple(axes.values()), devices, allow_split_physical_axes=True
    )
    step = Step(run, Mesh(grid, tuple(axes)))
    state = step.state()
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    return refusal(jax.jit(step, donate_argnums=0, out_shardings=shardings), state, step.ids())


def compile_too_much(chip):
    """Return the compiler's message about an array that fits no chip."""
    device = devices_of(chip, "2x2x1" if chip in ("v4", "v5p", "7x") else "2x2")[0]
    array = jax.ShapeDtypeStruct((64, 2**30), F32, sharding=SingleDeviceSharding(device))
    return refusal(jax.jit(jnp.cumsum), array)
