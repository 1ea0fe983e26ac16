"""Windows of convolutions and pools: sizes, padding, transposes and FLOPs."""

from dataclasses import replace
from typing import Any

import pytest
from conv_nets import ConvNet

from tpusim.graph import (
    Convolution,
    ConvolutionWindow,
    Graph,
    Pool,
    Tensor,
    TensorRole,
    executed_flops,
)


def window(**changes: Any) -> ConvolutionWindow:
    return ConvolutionWindow("i", "o", "t", **changes)


@pytest.mark.parametrize(
    ("size", "taps", "given", "outputs", "pads"),
    [
        (64, 3, {}, 64, (1, 1)),
        (224, 7, {"stride": 2}, 112, (2, 3)),
        (56, 3, {"stride": 2}, 28, (0, 1)),
        (56, 1, {"stride": 2}, 28, (0, 0)),
        (64, 3, {"dilation": 16}, 64, (16, 16)),
        (64, 3, {"padding": "valid"}, 62, (0, 0)),
        (64, 3, {"padding": "valid", "stride": 2}, 31, (0, 0)),
        (224, 7, {"stride": 2, "padding": (3, 3)}, 112, (3, 3)),
        (28, 2, {"input_dilation": 2}, 56, (1, 1)),
        (28, 3, {"input_dilation": 2}, 56, (2, 1)),
        (28, 3, {"input_dilation": 2, "padding": "valid"}, 57, (2, 2)),
        (28, 2, {"input_dilation": 2, "padding": "valid"}, 56, (1, 1)),
    ],
)
def test_outputs_and_padding_are_those_of_jax(
    size: int, taps: int, given: dict[str, Any], outputs: int, pads: tuple[int, int]
) -> None:
    """`lax.padtype_to_pads`, and the padding of `lax.conv_transpose`, by hand."""
    one = window(**given)
    assert (one.output_size(size, taps), one.pads(size, taps)) == (outputs, pads)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("up", [1, 2])
@pytest.mark.parametrize("padding", ["same", "valid", (2, 1)])
@pytest.mark.parametrize(("size", "taps", "dilation"), [(16, 3, 1), (17, 5, 1), (23, 3, 4)])
def test_the_gradient_of_a_window_meets_each_input_once(
    size: int, taps: int, dilation: int, stride: int, up: int, padding: Any
) -> None:
    """It makes as many outputs as there were inputs, from the very pairs of the forward pass."""
    one = window(stride=stride, dilation=dilation, input_dilation=up, padding=padding)
    back, outputs = one.backward(size, taps), one.output_size(size, taps)
    assert back.output_size(outputs, taps) == size
    assert (back.in_dim, back.out_dim) == ("o", "i")
    forward = pairs(one, size, taps)
    assert {(i, o, taps - 1 - t) for o, i, t in pairs(back, outputs, taps)} == forward


def pairs(one: ConvolutionWindow, size: int, taps: int) -> set[tuple[int, int, int]]:
    """(input, output, tap) of each multiplication, from the definition."""
    low, _ = one.pads(size, taps)
    found = set()
    for output in range(one.output_size(size, taps)):
        for tap in range(taps):
            place = output * one.stride - low + tap * one.dilation
            if place % one.input_dilation == 0 and 0 <= place // one.input_dilation < size:
                found.add((place // one.input_dilation, output, tap))
    return found


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"stride": 0}, "i: stride is 0; write 1 or more"),
        ({"padding": "full"}, "i: padding is 'full'; write same, valid or (low, high)"),
    ],
)
def test_a_window_that_cannot_be_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        window(**given)
    assert str(error.value) == message


def test_taps_that_reach_too_far_are_refused() -> None:
    with pytest.raises(ValueError, match="3 taps with a dilation of 4 reach over 9 inputs"):
        window(dilation=4, padding="valid").output_size(8, 3)
    with pytest.raises(ValueError, match="is both the inputs and the outputs"):
        ConvolutionWindow("i", "i", "t")


def flops_of(graph: Graph) -> list[int]:
    return [executed_flops(op, graph.sizes) for op in graph.ops if isinstance(op, Convolution)]


@pytest.mark.parametrize(
    ("given", "flops"),
    [
        ({}, 2 * (2 * 16 * 16 * 24) * 9 * 12),
        ({"stride": 2}, 2 * (2 * 8 * 8 * 24) * 9 * 12),
        ({"dilation": 4}, 2 * (2 * 16 * 16 * 24) * 9 * 12),
        ({"groups": 4}, 2 * (2 * 16 * 16 * 24) * 9 * 3),
        ({"depthwise": True}, 2 * (2 * 16 * 16 * 12) * 9),
        ({"up": 2}, 2 * (2 * 16 * 16 * 24) * 9 * 12),
    ],
)
def test_flops_are_two_a_tap_of_each_group(given: dict[str, Any], flops: int) -> None:
    """The taps of a transposed convolution meet inputs and not the zeros between them."""
    net = ConvNet(2, 12, (16, 16))
    net.conv(24, **given)
    assert flops_of(net.graph()) == [flops]


def test_a_convolution_over_a_volume() -> None:
    net = ConvNet(1, 4, (8, 8, 8))
    net.conv(6, 3, stride=2)
    assert flops_of(net.graph()) == [2 * 4**3 * 6 * 27 * 4]


def test_gradients_of_a_net_multiply_as_the_forward_pass() -> None:
    """Each but the first convolution has two, and the first has only its kernel's."""
    net = ConvNet(2, 12, (16, 16))
    net.conv(24, groups=4)
    net.conv(0, depthwise=True)
    net.conv(8, 2, up=2)
    graph, step = net.graph(), net.step()
    first, *others = flops_of(graph)
    assert step.model_flops() == 2 * first + 3 * sum(others)
    shapes = {gradient.dims for _, gradient in step.gradients}
    assert shapes == {p.tensor.dims for p in graph.parameters}


def pool_of(maximum: bool) -> tuple[Pool, Tensor]:
    x, y = Tensor("x", ("b", "i", "c")), Tensor("y", ("b", "o", "c"))
    return Pool("pool", x, y, (window(stride=2),), maximum), y


@pytest.mark.parametrize(("maximum", "reads"), [(True, ["dy", "x"]), (False, ["dy"])])
def test_the_gradient_of_a_maximum_finds_it_again(maximum: bool, reads: list[str]) -> None:
    pool, y = pool_of(maximum)
    given = {"y": replace(y, name="dy", role=TensorRole.GRADIENT)}
    (back,) = pool.transpose(given, lambda t: t.gradient(f"d({t.name})"))
    assert [tensor.name for tensor in back.inputs] == reads
    assert back.outputs[0].dims == pool.activation.dims
    image = replace(pool, activation=replace(pool.activation, role=TensorRole.INPUT))
    assert image.transpose(given, lambda t: t) == ()
