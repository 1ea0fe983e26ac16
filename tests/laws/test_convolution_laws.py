"""Laws of convolutions: more work takes no less time, and rearranged ones keep their result."""

from dataclasses import replace
from math import isfinite, prod
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from tpusim.base import PlanError
from tpusim.costs import convolution_seconds, is_depthwise, useful_share
from tpusim.hardware import load_chip
from tpusim.program import ConvolutionWork, convolution_work, rearrangements

CHIPS = st.sampled_from([load_chip(name).device for name in ("v3", "v4", "v5e", "v6e", "7x")])
CHANNELS = st.integers(1, 2048)


@st.composite
def convolutions(draw: st.DrawFn) -> ConvolutionWork:
    """Convolutions of one to three dimensions without groups, of any direction."""
    sides = draw(st.integers(1, 3))
    size = draw(st.lists(st.integers(1, 64), min_size=sides, max_size=sides))
    window = draw(st.lists(st.integers(1, 7), min_size=sides, max_size=sides))
    return convolution_work(
        draw(st.integers(1, 256)), size, window, draw(CHANNELS), draw(CHANNELS),
        stride=draw(st.integers(1, 4)), dilation=draw(st.sampled_from([1, 2, 16])),
        gradient=draw(st.sampled_from(["", "input", "weight"])),
    )  # fmt: skip


def with_channels(work: ConvolutionWork, deep: int, wide: int) -> ConvolutionWork:
    tensors = replace(work, in_channels=deep, out_channels=wide).tensor_elements
    written = tensors.pop(work.gradient)
    return replace(
        work, in_channels=deep, out_channels=wide,
        read_bytes=2 * sum(tensors.values()), write_bytes=2 * written,
    )  # fmt: skip


@given(convolutions(), CHIPS, st.integers(1, 300), st.integers(0, 300))
def test_more_channels_are_never_faster(
    work: ConvolutionWork, device: Any, deeper: int, wider: int
) -> None:
    least = with_channels(work, work.in_channels, work.out_channels)
    more = with_channels(work, work.in_channels + deeper, work.out_channels + wider)
    time = convolution_seconds(least, device)
    assert isfinite(time)
    assert convolution_seconds(more, device) >= time * (1 - 1e-9)


@given(convolutions(), CHIPS)
def test_the_array_does_no_less_than_the_convolution(work: ConvolutionWork, device: Any) -> None:
    assert 0 < useful_share(work, device) <= 1 + 1e-9


@given(convolutions())
def test_space_to_depth_keeps_the_flops_of_the_padded_window(work: ConvolutionWork) -> None:
    found = dict(rearrangements(work))
    name = next((each for each in found if each.startswith("space to depth")), None)
    assume(name is not None)
    made = found[name]
    padded = prod(
        -(-taps // stride) * stride for taps, stride in zip(work.window, work.strides, strict=True)
    )
    assert made.flops * work.taps == work.flops * padded
    assert made.positions == work.positions
    assert made.tensor_elements["input"] == work.tensor_elements["input"]


@given(convolutions())
def test_rearrangements_hold_the_result(work: ConvolutionWork) -> None:
    for _, made in rearrangements(work):
        assert made.flops >= work.flops
        assert made.tensor_elements[""] >= work.tensor_elements[""]
        assert made.write_bytes >= 0.99 * work.write_bytes


@given(st.integers(1, 64), st.integers(1, 64), st.integers(2, 64), CHIPS)
def test_depthwise_time_grows_with_the_image(batch: int, side: int, channels: int, device: Any):
    times = [
        convolution_seconds(
            convolution_work(batch, (each,), (7,), channels, channels, groups=channels), device
        )
        for each in (side, 2 * side)
    ]
    assert times == sorted(times)
    assert is_depthwise(convolution_work(1, (side,), (7,), channels, channels, groups=channels))


@given(st.integers(1, 9), st.integers(1, 9))
def test_sizes_fit_or_raise(size: int, window: int) -> None:
    try:
        work = convolution_work(1, (size,), (window,), 8, 8, padding="VALID")
    except PlanError:
        assert window > size
    else:
        assert work.positions == size - window + 1
