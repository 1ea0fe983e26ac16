"""The work of a convolution and of its two transposes."""

from dataclasses import replace

import pytest
from lowered import work_of

from tpusim.graph import Convolution, ConvolutionWindow, Tensor, TensorRole
from tpusim.partition import ComputeNode, Sizes
from tpusim.program import ConvolutionWork

DIMS = {
    "batch": 16, "in_h": 16, "in_w": 16, "out_h": 8, "out_w": 8, "in_c": 32, "out_c": 64,
    "kh": 3, "kw": 3,
}  # fmt: skip


def three(kernel: tuple[str, ...], channels: tuple[str, str]) -> list[Convolution]:
    """A convolution with a stride of 2, and its gradients of input and weights."""
    x = Tensor("x", ("batch", "in_h", "in_w", channels[0]))
    k = Tensor("k", kernel, TensorRole.PARAM)
    y = Tensor("y", ("batch", "out_h", "out_w", channels[1]))
    windows = (
        ConvolutionWindow("in_h", "out_h", "kh", 2),
        ConvolutionWindow("in_w", "out_w", "kw", 2),
    )
    op = Convolution("conv", x, k, y, windows)
    given = {"y": replace(y, name="dy", role=TensorRole.GRADIENT)}
    return [op, *op.transpose(given, lambda t: replace(t, name=f"d({t.name})"))]


def work(op: Convolution) -> ConvolutionWork:
    sizes = Sizes(DIMS, {"data": 4})
    split = (("batch", ("data",)),)
    node = ComputeNode(name=op.name, op=op, split=split, reads=(), writes=())
    found = work_of(node, sizes, {})
    assert isinstance(found, ConvolutionWork)
    return found


def test_each_says_what_it_computes_of_the_same_convolution() -> None:
    found = [work(op) for op in three(("kh", "kw", "in_c", "out_c"), ("in_c", "out_c"))]
    assert [each.gradient for each in found] == ["", "input", "weight"]
    for each in found:
        assert (each.batch, each.positions, each.taps) == (16 / 4, 8 * 8, 9)
        assert (each.in_channels, each.out_channels, each.groups) == (32, 64, 1)
        assert (each.window, each.strides) == ((3, 3), (2, 2))
        assert each.inputs == 16 * 16
        assert each.flops == pytest.approx(op_flops() / 4)


def op_flops() -> int:
    (op, *_) = three(("kh", "kw", "in_c", "out_c"), ("in_c", "out_c"))
    return op.flops(DIMS)


def test_channels_of_activation_kernel_and_result_are_groups() -> None:
    (op, *_) = three(("kh", "kw", "in_c"), ("in_c", "in_c"))
    found = work(op)
    assert (found.in_channels, found.out_channels, found.groups) == (32, 32, 32)
    assert found.flops == pytest.approx(op.flops(DIMS) / 4)
