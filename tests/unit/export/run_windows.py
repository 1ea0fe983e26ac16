"""Run convolutions and pools as JAX, on a CPU, and print what they make as JSON.

sizes: (shape, shape of the graph) of convolutions of each kind.
transposed: the largest difference from JAX's own transposed convolution.
grouped, depthwise, maximum, mean: values of small ones.
gradients: (shape of the gradient, shape) of each weight of a net.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
sys.path.insert(0, str(Path(__file__).parents[2]))

import jax
import jax.numpy as jnp
from conv_nets import ConvNet, conv_plan
from jax import lax
from jax_conv_nets import loss_of

from tpusim.export.windows import convolution, pool

KINDS: list[dict[str, Any]] = [
    {}, {"stride": 2}, {"dilation": 3}, {"padding": "valid", "taps": 5}, {"groups": 4},
    {"depthwise": True}, {"up": 2}, {"up": 2, "taps": 2}, {"up": 2, "padding": "valid"},
    {"padding": (2, 0), "stride": 2},
]  # fmt: skip


def made(net, x, k=None):
    """Run the first layer of a net."""
    write = convolution if k is not None else pool
    op, graph = net.ops[0], net.graph()
    text = write(op, "x", *(["k"] if k is not None else []), graph.sizes)
    return eval(text, {"lax": lax, "jnp": jnp, "x": x, "k": k})


def sizes(given):
    net = ConvNet(2, 8, (16, 15))
    net.conv(12, act=False, **given)
    operands = ([net.dims[dim] for dim in tensor.dims] for tensor in net.ops[0].inputs)
    x, k = (jnp.ones(shape, jnp.float32) for shape in operands)
    return made(net, x, k).shape, [net.dims[dim] for dim in net.x.dims]


def transposed(taps, padding):
    net = ConvNet(1, 2, (9, 8))
    net.conv(3, taps, up=2, padding=padding, act=False)
    keys = jax.random.split(jax.random.key(0))
    x = jax.random.normal(keys[0], (1, 9, 8, 2))
    k = jax.random.normal(keys[1], (taps, taps, 2, 3))
    expected = lax.conv_transpose(x, k, (2, 2), padding.upper())
    return float(abs(made(net, x, k) - expected).max())


def one_tap(channels, kernel, **given):
    net = ConvNet(1, 8, (1, 1))
    net.conv(channels, 1, act=False, **given)
    return made(net, jnp.arange(8.0).reshape(1, 1, 1, 8), kernel).ravel().tolist()


def pooled(maximum):
    net = ConvNet(1, 1, (4, 4))
    net.pool(maximum=maximum)
    return made(net, jnp.arange(16.0).reshape(1, 4, 4, 1)).ravel().tolist()


def gradients():
    net = ConvNet(2, 8, (16, 16))
    net.conv(8, 7, 2)
    net.norm()
    before = net.conv(8, depthwise=True)
    net.conv(8, groups=2, act=False)
    net.add(before)
    net.pool(3)
    net.upsample()
    loss, (image, weights) = loss_of(net, conv_plan({"data": 1}, 2), sharded=False)
    found = jax.eval_shape(jax.grad(loss, argnums=1), image, weights)
    return [(found[key].shape, weight.shape) for key, weight in weights.items()]


answer = {
    "sizes": [sizes(given) for given in KINDS],
    "transposed": [transposed(n, word) for n in (2, 3, 5) for word in ("same", "valid")],
    "grouped": one_tap(4, jnp.ones((1, 1, 2, 4)), groups=4),
    "depthwise": one_tap(0, jnp.arange(8.0).reshape(1, 1, 8), depthwise=True),
    "maximum": pooled(True),
    "mean": pooled(False),
    "gradients": gradients(),
}
print(json.dumps(answer))
