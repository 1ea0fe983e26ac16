"""A residual convolution net on large images: batch over `data`, height over `space`.

Each 3 x 3 convolution needs adjacent rows from its neighbours: halos, exchanged by permutes. With
a stride of 2 only one side is needed.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from parts import BF16, F32, axes_of, shard, trained

FULL = {"levels": 4, "blocks": 3, "features": 256, "size": 512, "batch": 256}
SMALL = {"levels": 2, "blocks": 2, "features": 128, "size": 128, "batch": 16}
RUNS = {
    "full": [("v5e:16x16", {"data": 64, "space": 4})],
    "small": [
        ("v5e:4x4", {"data": 4, "space": 4}, {"batch": 64}),
        ("v3:2x2", {"data": 2, "space": 4}),
    ],
}


def convolve(x, w, stride=1):
    """Convolve [batch, height, width, features] with 3 x 3 taps."""
    return lax.conv_general_dilated(
        x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def program(mesh, *, levels, blocks, features, size, batch):
    """Return one training step; features double and the image halves from level to level."""
    rows = axes_of(mesh, "dcn_data", "data")

    def act(x):
        return shard(x, rows, "space")

    def loss(weights, x):
        x = act(x)
        for level in range(levels):
            if level:
                x = act(jax.nn.relu(convolve(x, weights[f"down{level}"], stride=2)))
            for block in range(blocks):
                y = act(jax.nn.relu(convolve(x, weights[f"conv{level}_{block}"])))
                x = x + y
        return jnp.mean(jnp.square(x.astype(F32)))

    weights, forward, input_gradient = {}, 0.0, 0.0
    for level in range(levels):
        wide, tall = features * 2**level, size // 2**level
        names = {f"conv{level}_{block}": wide for block in range(blocks)}
        for name, before in {**({f"down{level}": wide // 2} if level else {}), **names}.items():
            weights[name] = ((3, 3, before, wide), P())
            one = 2 * batch * (3 * tall) ** 2 * before * wide  # taps on padding count too
            forward += one
            input_gradient += 0 if name == "conv0_0" else one
    x = jax.ShapeDtypeStruct((batch, size, size, features), BF16)
    flops = 2 * forward + input_gradient  # the gradient of the image is not needed
    return trained(
        loss, weights, (x,), (P(rows, "space"),),
        model_flops=flops,
        step_flops=flops,
        expected=("collective-permute", "all-reduce"),
    )  # fmt: skip
