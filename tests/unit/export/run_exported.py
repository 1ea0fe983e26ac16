"""Run exported steps on eight CPU devices: python run_exported.py SHARDED.py WHOLE.py

The first file is of a plan on eight devices, the second of the same model on one. Prints, as JSON:
the losses of training the first, its number of weights, the largest difference of a gradient of
the two, relative to the largest gradient of its weight: of all weights, and of each; and the
largest gradient of each weight in either, relative to the largest of all.
"""

import json
import os
import sys
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
# Most of the time is the compilation of programs that run a few times.
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0 "
    "--xla_llvm_disable_expensive_passes=true"
)

import jax
import jax.numpy as jnp
import numpy as np


def load(path):
    space = {"__name__": "step"}
    exec(compile(Path(path).read_text(), path, "exec"), space)
    space["INTERPRET"] = True
    return space


def on_mesh(space, run):
    axes = (jax.sharding.AxisType.Auto,) * len(space["MESH"])
    shape = tuple(space["MESH"].values())
    devices = jax.devices()[: int(np.prod(shape))]
    mesh = jax.make_mesh(shape, tuple(space["MESH"]), axis_types=axes, devices=devices)
    with jax.set_mesh(mesh):
        return run()


def start(space):
    state = jax.jit(space["init"], out_shardings=space["step_specs"]())(jax.random.key(0))
    if "INPUTS" in space:
        keys = jax.random.split(jax.random.key(1), len(space["INPUTS"]))
        named = zip(keys, space["INPUTS"].items(), strict=True)
        drawn = {n: space["drawn"](key, *of) for key, (n, of) in named}
        return state, {n: jax.device_put(x, space["INPUT_SPECS"][n]) for n, x in drawn.items()}
    tokens = jax.random.randint(jax.random.key(1), space["BATCH_SHAPE"], 0, 500)
    ids, targets = tokens, jnp.roll(tokens, -1, axis=-1)
    if "ORDER" in space:
        ids, targets = (x[..., space["ORDER"]] for x in (ids, targets))
    return state, *(jax.device_put(x, space["BATCH_SPEC"]) for x in (ids, targets))


def gradients(space):
    def run():
        (params, _), *batch = start(space)
        of = space.get("mean_gradients") or space["gradients"]
        return jax.tree.map(np.asarray, jax.jit(of)(params, *batch))

    return on_mesh(space, run)


def losses(space, steps=8):
    def run():
        state, *batch = start(space)
        step = jax.jit(space["train_step"], donate_argnums=0)
        found = []
        for _ in range(steps):
            state, value = step(state, *batch)
            found.append(float(value))
        return found

    return on_mesh(space, run)


def differences(one, other):
    found = {}
    ours = jax.tree_util.tree_leaves_with_path(one)
    for (path, a), b in zip(ours, jax.tree.leaves(other), strict=True):
        apart = np.abs(a.reshape(b.shape).astype(np.float32) - b)
        found[jax.tree_util.keystr(path)] = float(apart.max() / max(np.abs(b).max(), 1e-30))
    return found


def sizes(*grads):
    found = {}
    for one in grads:
        for path, leaf in jax.tree_util.tree_leaves_with_path(one):
            name = jax.tree_util.keystr(path)
            found[name] = max(found.get(name, 0.0), float(np.abs(leaf).max()))
    return {name: size / max(found.values()) for name, size in found.items()}


sharded, whole = map(load, sys.argv[1:])
(loss, ours), (loss_of_one, theirs) = gradients(sharded), gradients(whole)
apart = differences(ours, theirs)
weights = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(sharded["abstract_weights"]()))
print(
    json.dumps(
        {
            "losses": losses(sharded),
            "weights": weights,
            "loss_difference": abs(float(loss) / float(loss_of_one) - 1),
            "gradient_difference": max(apart.values()),
            "gradient_differences": apart,
            "gradient_sizes": sizes(ours, theirs),
        }
    )
)
