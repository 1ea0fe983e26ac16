"""Kernels without an estimate of their cost, and the HLO files that they are compiled to.

python kernels.py     # writes the files and manifest.json here; jax 0.10.2, libtpu 0.0.42.1
"""

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import tpusim as ts

FOLDER = Path(__file__).parent
M, K, N = 2048, 1024, 512
BLOCK = 256


def tiled(x, y, made=jnp.float32, block=BLOCK):
    """A product by blocks, added up over the innermost dimension of the grid."""
    (m, k), n = x.shape, y.shape[1]

    def kernel(x, y, out, total):
        @pl.when(pl.program_id(2) == 0)
        def _():
            total[...] = jnp.zeros_like(total)

        total[...] += jnp.dot(x[...], y[...], preferred_element_type=total.dtype)

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _():
            out[...] = total[...].astype(out.dtype)

    return pl.pallas_call(
        kernel,
        grid=(m // block, n // block, k // block),
        in_specs=[
            pl.BlockSpec((block, block), lambda i, j, at: (i, at)),
            pl.BlockSpec((block, block), lambda i, j, at: (at, j)),
        ],
        out_specs=pl.BlockSpec((block, block), lambda i, j, at: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype if made == jnp.float32 else made),
        scratch_shapes=[pltpu.VMEM((block, block), made)],
    )(x, y)


def rows(kernel, n, *operands):
    """A kernel over blocks of rows of the first operand; the others are there as a whole."""
    first = operands[0]
    return pl.pallas_call(
        kernel,
        grid=(first.shape[0] // BLOCK,),
        in_specs=[
            pl.BlockSpec((BLOCK, first.shape[1]), lambda i: (i, 0)),
            *(pl.BlockSpec(each.shape, lambda i: (0, 0)) for each in operands[1:]),
        ],
        out_specs=pl.BlockSpec((BLOCK, n), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((first.shape[0], n), jnp.float32),
    )(*operands)


def softmax(x):
    """No product: a maximum, a difference, an exponential, a sum and a quotient."""

    def kernel(x, out):
        each = jnp.exp(x[...] - x[...].max(-1, keepdims=True))
        out[...] = each / each.sum(-1, keepdims=True)

    return rows(kernel, x.shape[1], x)


def looped(x, y, trips=lambda: K // 128):
    """A loop inside, over parts of 128 of what is contracted."""

    def kernel(x, y, out):
        def body(at, total):
            part = pl.ds(at * 128, 128)
            return total + jnp.dot(x[:, part], y[part, :], preferred_element_type=jnp.float32)

        out[...] = jax.lax.fori_loop(0, trips(), body, jnp.zeros(out.shape, jnp.float32))

    return rows(kernel, y.shape[1], x, y)


def dynamic(x, y):
    """The same loop, of as many trips as the place in the grid says."""
    return looped(x, y, lambda: pl.program_id(0) + 1)


def online(scores, values):
    """A softmax and a product, of which XLA makes a kernel of its own (`online-softmax`)."""
    return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores), values)


KERNELS = {
    "tiled": (tiled, "v5e:1x1", jnp.bfloat16),
    "int8": (partial(tiled, made=jnp.int32), "v6e:1x1", jnp.int8),
    "softmax": (softmax, "v5e:1x1", jnp.float32),
    "looped": (looped, "v6e:1x1", jnp.bfloat16),
    "dynamic": (dynamic, "v5e:1x1", jnp.bfloat16),
    "online": (online, "v5e:1x1", jnp.bfloat16),
}
SHAPES = {softmax: [(M, K)], online: [(8, K, K), (8, K, 128)]}
"""Of operands, where they are not those of a product."""


def compiled(name):
    """The kernel of that name, compiled for one chip."""
    kernel, slice_, dtype = KERNELS[name]
    shapes = SHAPES.get(kernel, [(M, K), (K, N)])
    args = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    return ts.xla.compile(kernel, *args, name=name, slice=slice_, mesh={"x": 1}, cache=False)


def short_paths(data):
    """HLO that names files without their folders."""
    return re.sub(rb'^(\d+ ")/[^"\n]*/([^"/\n]+\.py")$', rb"\1\2", data, flags=re.MULTILINE)


def main():
    """Compile all of them, and write the manifest."""
    lines = {}
    for name, (_, slice_, _) in KERNELS.items():
        found = compiled(name)
        file = f"{name}_{slice_.partition(':')[0]}.hlo.gz"
        replace(found, data=short_paths(found.data)).save(FOLDER / file)
        versions = dict(found.versions)
        lines[file] = {"slice": slice_, "model_flops": found.model_flops, "versions": versions}
        print(file, lines[file])
    rows = ",\n".join(f'"{file}": {json.dumps(lines[file])}' for file in sorted(lines))
    text = f'{{"command": "python kernels.py",\n"files": {{\n{rows}\n}}}}\n'
    (FOLDER / "manifest.json").write_text(text, "utf-8")


if __name__ == "__main__":
    main()
