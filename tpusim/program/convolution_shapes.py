"""The work of convolutions from their shapes, as in JAX, and other shapes of the same result."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil, prod
from typing import Any

from tpusim.base.errors import PlanError
from tpusim.program.numeric import Number, round_up
from tpusim.program.work import ConvolutionWork

PADDINGS = ("SAME", "VALID")
GRADIENTS = ("", "input", "weight")
FEW_CHANNELS = 128
"""Channels below which lanes are empty, and positions can be folded into them."""


def convolution_work(
    batch: int,
    size: Sequence[int],
    window: Sequence[int],
    in_channels: int,
    out_channels: int,
    *,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
    padding: str = "SAME",
    gradient: str = "",
    dtype: str = "bf16",
    item: float = 2.0,
) -> ConvolutionWork:
    """Return the work of [batch, *size, in_channels] by [*window, in_channels / groups, out].

    gradient: `input` or `weight` for the gradient, "" for the result.
    item: bytes of an element.

    Raise PlanError for sizes that do not fit each other.
    """
    check_shape(size, window, in_channels, out_channels, groups, padding, gradient)
    span = [(taps - 1) * dilation + 1 for taps in window]
    if padding == "SAME":
        outputs = [ceil(length / stride) for length in size]
    else:
        outputs = [(length - taps) // stride + 1 for length, taps in zip(size, span, strict=True)]
    if min(outputs) < 1:
        raise PlanError(f"a window that spans {_by(span)} has no place on {_by(size)}")
    work = ConvolutionWork(
        batch, prod(outputs), prod(window), in_channels, out_channels, dtype, 0, 0,
        gradient=gradient, window=tuple(window), strides=(stride,) * len(size), groups=groups,
        dilation=dilation,
    )  # fmt: skip
    elements = work.tensor_elements | {"input": batch * prod(size) * in_channels}
    written = elements.pop(gradient)
    return replace(work, read_bytes=item * sum(elements.values()), write_bytes=item * written)


def check_shape(
    size: Sequence[int],
    window: Sequence[int],
    in_channels: int,
    out_channels: int,
    groups: int,
    padding: str,
    gradient: str,
) -> None:
    """Raise PlanError for sizes that do not fit each other."""
    if len(size) != len(window) or not size:
        plural = "" if len(size) == 1 else "s"
        raise PlanError(
            f"the image has {len(size)} spatial dimension{plural} and the window {len(window)}; "
            "write one size for each"
        )
    if in_channels % groups or out_channels % groups:
        raise PlanError(
            f"{groups} groups do not divide {in_channels} input and {out_channels} output channels"
        )
    if padding not in PADDINGS:
        raise PlanError(f"padding is {padding!r}; valid are {', '.join(PADDINGS)}")
    if gradient not in GRADIENTS:
        raise PlanError(f"gradient is {gradient!r}; valid are input and weight")


def rearrangements(work: ConvolutionWork) -> Iterator[tuple[str, ConvolutionWork]]:
    """Return other shapes of a convolution that hold its result, each with a name.

    space to depth: `s x s` positions become channels, and the stride of s becomes 1; the window is
        padded to whole strides.
    channels rounded up: to whole lanes, with zeros.
    width folded: pairs of positions along the minor dimension become channels, of the image and
        the result; the window grows to whole pairs, with zeros.
    """
    if work.groups == 1 and work.dilation == 1:
        yield from _space_to_depth(work)
        yield from _folded(work)
    yield from _rounded(work)


def _space_to_depth(work: ConvolutionWork) -> Iterator[tuple[str, ConvolutionWork]]:
    stride = prod(work.strides)
    if stride == 1:
        return
    window = tuple(ceil(taps / each) for taps, each in zip(work.window, work.strides, strict=True))
    yield f"space to depth by {_by(work.strides)}", _reshaped(
        work, window=window, taps=prod(window), in_channels=work.in_channels * stride,
        strides=(1,) * len(window),
    )  # fmt: skip


def _folded(work: ConvolutionWork) -> Iterator[tuple[str, ConvolutionWork]]:
    few = min(work.in_channels, work.out_channels) <= FEW_CHANNELS // 2
    if not few or prod(work.strides) != 1 or not work.window or work.positions % 2:
        return
    before = (work.window[-1] - 1) // 2
    after = work.window[-1] - 1 - before
    pairs = 1 + ceil(before / 2) + ceil(after / 2)
    window = (*work.window[:-1], pairs)
    yield "width folded by 2 into channels", _reshaped(
        work, window=window, taps=prod(window), positions=work.positions // 2,
        in_channels=2 * work.in_channels, out_channels=2 * work.out_channels,
    )  # fmt: skip


def _rounded(work: ConvolutionWork) -> Iterator[tuple[str, ConvolutionWork]]:
    deep, wide = (round_up(n, FEW_CHANNELS) for n in (work.in_channels, work.out_channels))
    if (deep, wide) == (work.in_channels, work.out_channels) or work.groups > 1:
        return
    yield (
        f"channels rounded up to {deep:g} and {wide:g}",
        _reshaped(work, in_channels=deep, out_channels=wide),
    )


def _reshaped(work: ConvolutionWork, **sizes: Any) -> ConvolutionWork:
    """Return a convolution of other sizes, whose bytes grow as its elements do."""
    made = replace(work, **sizes)
    read, written = (
        _elements(made, kind) / _elements(work, kind) for kind in ("operands", "result")
    )
    return replace(made, read_bytes=work.read_bytes * read, write_bytes=work.write_bytes * written)


def _elements(work: ConvolutionWork, kind: str) -> Number:
    tensors = work.tensor_elements
    result = tensors.pop(work.gradient)
    return result if kind == "result" else sum(tensors.values())


def _by(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))
