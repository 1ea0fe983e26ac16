"""Run exported steps of a server on CPU devices: python run_served.py PROMPTS.py DECODE.py WHOLE.py

The first two are steps of one server, which computes prompts and then decodes; the third is a
training step of the same model on one device, on as many tokens as the sequences then have. Prints,
as JSON, the largest difference of the logits of each decoded token to those of the third, relative
to the largest logit, and whether the sampled tokens are the same.

All compute in f32, so that only the order of sums differs.
"""

import json
import os
import re
import sys
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0 "
    "--xla_llvm_disable_expensive_passes=true"
)

import jax
import jax.numpy as jnp
import numpy as np


def load(path, *changes):
    source = Path(path).read_text().replace("jnp.bfloat16", "jnp.float32")
    for old, new in changes:
        assert len(re.findall(old, source)) == 1, (path, old)
        source = re.sub(old, new, source)
    space = {"__name__": "step"}
    exec(compile(source, path, "exec"), space)
    space["INTERPRET"] = True
    return space


def on_mesh(space, run):
    axes = (jax.sharding.AxisType.Auto,) * len(space["MESH"])
    shape = tuple(space["MESH"].values())
    devices = jax.devices()[: int(np.prod(shape))]
    mesh = jax.make_mesh(shape, tuple(space["MESH"]), axis_types=axes, devices=devices)
    with jax.set_mesh(mesh):
        return run()


def served(space, weights, cache, ids, lengths):
    """The cache, the logits and the tokens of each sequence after a step."""

    def run():
        batch = space["step_inputs"](jax.random.key(1))
        shape = space["INPUTS"]["ids"][0]
        batch["ids"] = jnp.asarray(ids).reshape(shape)
        batch["kv_lengths"] += lengths
        step = jax.jit(
            space["server_step"],
            donate_argnums=1,
            in_shardings=space["argument_specs"](),
            out_shardings=(space["CACHE_SPECS"], None),
        )
        given = [
            jax.device_put(x, s)
            for x, s in zip((weights, cache, batch), space["argument_specs"](), strict=True)
        ]
        made, (logits, token) = step(*given)
        rows = len(np.asarray(ids))
        host = jax.tree.map(np.asarray, (made, logits, token))
        return host[0], host[1].reshape(rows, -1), host[2].ravel()

    return on_mesh(space, run)


def drawn(space):
    """Weights with scales that differ by column."""
    tree = on_mesh(
        space, lambda: jax.tree.map(np.asarray, space["server_weights"](jax.random.key(0)))
    )
    spread = np.random.default_rng(0)

    def changed(path, weight):
        name = jax.tree_util.keystr(path)
        own = weight * spread.uniform(0.5, 1.5, weight.shape) if "scale" in name else weight
        return own.astype(weight.dtype)

    return jax.tree_util.tree_map_with_path(changed, tree)


def widened(table):
    """The weights of the model as a training step has them: narrow ones times their scales."""
    made = {}
    for name, weight in table.items():
        if isinstance(weight, list):
            made[name] = widened(jax.tree.map(lambda *each: np.stack(each), *weight))
            continue
        scale = table.get(f"{name}_scale")
        wide = weight.astype(np.float32)
        if scale is not None:
            summed = weight.ndim - scale.ndim
            wide = wide * scale.reshape(scale.shape[0], *[1] * summed, *scale.shape[1:])
        if not (name.endswith("_scale") and name.removesuffix("_scale") in table):
            made[name] = wide
    return made


SAMPLED = (r"(return \{.*\}), next_token", r"\1, (sampled_logits, next_token)")
prompts, decode = (load(path, SAMPLED) for path in sys.argv[1:3])
whole = load(sys.argv[3], (r"return jnp\.mean\(.*\)", "return logits"))

weights = drawn(prompts)
count, length = prompts["BATCH"] * prompts["SEQUENCES"], prompts["TOKENS_EACH"]
total = whole["SEQ"]
tokens = np.asarray(jax.random.randint(jax.random.key(3), (count, total), 0, prompts["VOCAB"]))
cache = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), prompts["described"](prompts["CACHE"]))
found = []
cache, logits, token = served(prompts, weights, cache, tokens[:, :length], 0)
found.append((logits, token))
for at in range(length, total):
    cache, logits, token = served(decode, weights, cache, tokens[:, at : at + 1], at)
    found.append((logits, token))


def run():
    w = jax.tree.map(jnp.asarray, widened(weights))
    return np.asarray(jax.jit(whole["loss"])(w, tokens, tokens))


wanted = on_mesh(whole, run)
differences, same = [], []
for place, (logits, token) in enumerate(found, start=length - 1):
    ours = wanted[:, place, : logits.shape[1]]
    differences.append(float(np.abs(logits - ours).max() / np.abs(ours).max()))
    same.append(bool((token == logits.argmax(axis=1)).all()))
print(json.dumps({"differences": differences, "argmax": all(same)}))
