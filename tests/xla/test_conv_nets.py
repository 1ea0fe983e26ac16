"""The halos of a plan and of the program that the TPU compiler makes of the same net."""

import re
from collections import Counter
from importlib.util import find_spec
from math import prod

import pytest
from conv_nets import ConvNet, conv_plan, conv_program
from extent import sample, thorough

import tpusim as ts
from tpusim.program import Collective, CollectiveKind, Mode, Program, walk_ops

pytestmark = [
    pytest.mark.xla,
    pytest.mark.skipif(find_spec("libtpu") is None, reason="needs pip install 'tpusim[xla]'"),
]

ITEM = {"bf16": 2, "f32": 4}


def residual() -> ConvNet:
    net = ConvNet(16, 128, (64, 64))
    net.conv(128)
    net.norm()
    before = net.conv(128)
    net.conv(128, act=False)
    net.add(before)
    net.pool(3)
    net.conv(256, 7, 2)
    return net


def mixed() -> ConvNet:
    """Dilated and depthwise convolutions, a mean, and upsampling by repetition."""
    net = ConvNet(16, 128, (64, 64))
    net.conv(128, 7, 2)
    net.pool(3)
    before = net.conv(128, dilation=2)
    net.conv(0, depthwise=True)
    net.add(before)
    net.pool(maximum=False)
    net.conv(256, 1)
    net.upsample()
    net.conv(128)
    return net


def uneven() -> ConvNet:
    """56 rows over 4, of which a stride leaves 28 and a valid convolution 26."""
    net = ConvNet(16, 128, (56, 56))
    net.conv(128, stride=2)
    net.conv(128, padding="valid")
    net.conv(64, dilation=12)
    return net


def transposed() -> ConvNet:
    """Transposed convolutions with and without a halo, whose kernels' gradients are mirrored."""
    net = ConvNet(16, 64, (32, 32))
    net.conv(64)
    net.conv(64, 2, up=2)
    net.conv(64)
    net.conv(32, 3, up=2)
    return net


def planned(program: Program) -> Counter[int]:
    """How often a permute of so many bytes is sent in the plan."""
    found: Counter[int] = Counter()
    for op, times in walk_ops(program.body):
        if isinstance(op, Collective) and op.kind is CollectiveKind.PERMUTE:
            assert op.mode is Mode.ASYNC
            for nbytes in [part.bytes for part in op.parts] or [op.bytes]:
                found[int(nbytes)] += times
    return found


def compiled(net: ConvNet, mesh: dict[str, int], pod: str) -> str:
    import jax
    from jax.sharding import PartitionSpec as P
    from jax_conv_nets import loss_of

    plan = conv_plan(mesh, net.batch, height="space")
    loss, shapes = loss_of(net, plan, sharded=True)
    shardings = (P("data", "space"), dict.fromkeys(shapes[1], P()))
    made = ts.xla.compile(
        jax.grad(loss, argnums=1), *shapes, slice=pod, mesh=mesh, in_shardings=shardings,
        cache=False, name="net",
    )  # fmt: skip
    return made.data if isinstance(made.data, str) else made.data.decode()


@pytest.mark.thorough
@pytest.mark.parametrize("pod", ["v5e:2x4", thorough("v4:2x2x2"), thorough("v6e:2x4")])
@pytest.mark.parametrize("make", sample([residual, mixed, uneven, transposed], 4))
def test_as_many_permutes_of_as_many_bytes(make, pod: str) -> None:
    net, mesh = make(), {"data": 2, "space": 4}
    text = compiled(net, mesh, pod)
    starts = re.findall(r" = \((bf16|f32)\[([0-9,]+)\][^=]* collective-permute-start\(", text)
    theirs = Counter(prod(map(int, dims.split(","))) * ITEM[dtype] for dtype, dims in starts)
    assert planned(conv_program(net, conv_plan(mesh, net.batch, height="space"), pod)) == theirs
    gathered = len(re.findall(r" all-gather(-start)?\(", text))
    assert gathered == (2 if make is uneven else 0)
