"""Multiply by a weight as an exported step does, on eight CPU devices: run_matmuls.py STEP.py

Prints, as JSON, for the product, the gradient of x and that of the weight: the largest difference
from the exact one, as a part of what rounding may make of it. Rounding moves an operand by half a
step of its channel; a result that is added up in several parts in the compute dtype, by that too.
"""

import json
import os
import sys
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

FORMULA, GRADIENT = "bse,ef->bsf", "bsf"
STEPS = {"int8": 1 / 127, "float8_e4m3fn": 1 / 8}

space = {"__name__": "step"}
exec(compile(Path(sys.argv[1]).read_text(), sys.argv[1], "exec"), space)


def multiply(x, w):
    if "narrow_weight_einsum" in space:
        return space["narrow_weight_einsum"](FORMULA, x, w, P("fsdp"), b="fsdp", f="tensor")
    if "quantised_einsum" in space:
        return space["quantised_einsum"](FORMULA, x, w, b="fsdp", f="tensor")
    return space["weight_einsum"](FORMULA, x, w, *([P(None, "tensor")] if APART else []))


def half_step(operand, letters, made, dtype):
    """Half a step of each channel of an operand."""
    summed = tuple(n for n, letter in enumerate(letters) if letter not in made)
    top = abs(operand).max(summed, keepdims=True)
    return np.broadcast_to(top * STEPS.get(jnp.dtype(dtype).name, 0.0) / 2, operand.shape)


def allowed(formula, x, y, dtype):
    """The most that rounding the operands to a dtype may add up to."""
    left, right, made = formula.replace("->", ",").split(",")
    off_x, off_y = half_step(x, left, made, dtype), half_step(y, right, made, dtype)
    if NARROW_FIRST and left == GRADIENT and y is w:  # scales of the forward matmul
        off_y = half_step(w, "ef", GRADIENT, dtype)
        scale = abs(w).max(0)
        off_x = half_step(x * scale, left, made, dtype) / scale
    first = np.einsum(formula, off_x, abs(y)) + np.einsum(formula, abs(x), off_y)
    return first + np.einsum(formula, off_x, off_y) + 1e-5 * abs(np.einsum(formula, x, y)).max()


NARROW_FIRST = "narrow_weight_einsum" in space
APART = space["GATHERED"] != space["COMPUTE"]
compute = space["COMPUTE"]
keys = jax.random.split(jax.random.key(0), 3)
shapes = {"x": (8, 16, 32), "w": (32, 64), "grad": (8, 16, 64)}
x, w, grad = (
    jax.random.normal(key, shape).astype(compute)
    for key, shape in zip(keys, shapes.values(), strict=True)
)
w = w.astype(space["GRADIENTS"])
axes = (jax.sharding.AxisType.Auto,) * 2
with jax.set_mesh(jax.make_mesh((4, 2), ("fsdp", "tensor"), axis_types=axes)):
    run = jax.jit(
        lambda *given: (lambda out, back: (out, *back(given[2])))(*jax.vjp(multiply, *given[:2]))
    )
    found = [np.asarray(each, np.float64) for each in run(x, w, grad)]
    dtypes = [str(each.dtype) for each in run(x, w, grad)]
x, w, grad = (np.asarray(each, np.float64) for each in (x, w, grad))
forward = space["GATHERED"] if NARROW_FIRST else space.get("FORWARD", compute)
wanted = {
    "product": (FORMULA, x, w, forward),
    "dx": ("bsf,ef->bse", grad, w, space.get("BACKWARD", forward)),
    "dw": ("bse,bsf->ef", x, grad, space.get("FOR_WEIGHTS", compute)),
}
parts = {
    name: float((abs(ours - np.einsum(*given[:3])) / allowed(*given)).max())
    for (name, given), ours in zip(wanted.items(), found, strict=True)
}
print(json.dumps(parts | {"dtypes": dtypes}))
