"""Convolutions of a measured table, with the operations that are fused to them."""

import re
from dataclasses import replace
from math import prod
from typing import Any

from tpusim.costs.program_costs import work_seconds
from tpusim.hardware import load_chip
from tpusim.program import ConvolutionWork, MatmulWork, convolution_work

GRADIENTS = {"Conv2D": "", "Conv2DBackpropInput": "input", "Conv2DBackpropFilter": "weight"}
PARAMS = re.compile(r"(\w+) b(\d+) (\d+)->(\d+) k(\d+) s(\d+) out (\d+)\^2")
ITEM = 4
"""Bytes of an element: XLA's convolutions of TensorFlow read and write f32, as their bytes show."""


def convolution(measured: Any) -> float:
    """Return the predicted seconds of `Conv2D bN Cin->Cout kK sS out H^2` or of a gradient.

    A profile that counts more FLOPs than a convolution has met it several times in a step.
    """
    work = _work(measured)
    times = max(1, round(measured.flops / float(work.flops)))
    each = _with_neighbours(work, measured.bytes / times)
    device = load_chip(measured.chip).device
    seconds: float = times * work_seconds(_as_compiled(each), device)
    return seconds


def _work(measured: Any) -> ConvolutionWork:
    found = PARAMS.match(measured.params)
    if not found or found[1] not in GRADIENTS:
        raise ValueError(
            f"{measured.params!r} is no `OPERATION bN Cin->Cout kK sS out H^2`, where the "
            f"operation is one of {', '.join(GRADIENTS)}"
        )
    batch, deep, wide, taps, stride, side = map(int, found.groups()[1:])
    return convolution_work(
        batch, (side * stride,) * 2, (taps,) * 2, deep, wide,
        stride=stride, gradient=GRADIENTS[found[1]], item=ITEM, dtype="f32",
    )  # fmt: skip


def _with_neighbours(work: ConvolutionWork, moved: float) -> ConvolutionWork:
    """Return a convolution that moves so many bytes in all, as a profile counts them.

    It writes its result, and reads the rest. If the profile says nothing it moves its own tensors.
    """
    if not moved:
        return work
    written = min(work.write_bytes, moved)
    return replace(work, read_bytes=moved - written, write_bytes=written, tiled=True)


def _as_compiled(work: ConvolutionWork) -> ConvolutionWork | MatmulWork:
    """Return the matmul of pixels and channels that a single tap without a stride is."""
    if work.taps != 1 or prod(work.strides) != 1:
        return work
    m, k, n = work.batch * work.positions, work.in_channels, work.out_channels
    if work.gradient:
        m, k, n = (k, m, n) if work.gradient == "weight" else (m, n, k)
    return MatmulWork(1, m, k, n, work.dtype, work.read_bytes, work.write_bytes)
