"""Sums of kernels' gradients over sharded positions and over a sharded batch."""

from collections import Counter

import pytest
from conv_nets import ConvNet, conv_plan, conv_program

from tpusim.program import Collective, CollectiveKind, CollectivePart, walk_ops


def sums(taps: int, stride: int) -> Counter[tuple[str, ...]]:
    """The axes of the all-reduces of the gradient of a kernel, of a net over `data` and `space`."""
    net = ConvNet(16, 128, (64, 64))
    net.conv(128, 7)
    net.conv(256, taps, stride)
    ops = conv_program(net, conv_plan({"data": 4, "space": 4}, 16, height="space")).body
    found: Counter[tuple[str, ...]] = Counter()
    for op, _ in walk_ops(ops):
        if isinstance(op, Collective) and op.kind is CollectiveKind.ALL_REDUCE:
            for part in op.parts or (CollectivePart(op.scope, op.bytes),):
                found[tuple(op.axes)] += "l2/kernel" in part.scope
    return +found


@pytest.mark.parametrize(("taps", "stride"), [(3, 1), (3, 2), (1, 2)])
def test_windows_are_summed_over_positions_first(taps: int, stride: int) -> None:
    assert sums(taps, stride) == {("space",): 1, ("data",): 1}


def test_a_matmul_of_pixels_is_summed_once() -> None:
    (axes,) = sums(1, 1).elements()
    assert set(axes) == {"data", "space"}
