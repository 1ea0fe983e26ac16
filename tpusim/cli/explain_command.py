"""`tpusim explain`: what one operation costs, without a run file."""

import re

from tpusim.base.errors import PlanError
from tpusim.hardware import load_chip
from tpusim.partition import DTYPE_BYTES
from tpusim.program import convolution_work
from tpusim.simulation.explain_convolutions import explain_convolutions


def explain_convolution(
    chip: str,
    image: str,
    kernel: str,
    *,
    stride: int,
    dilation: int,
    groups: int,
    padding: str,
    gradient: str | None,
    dtype: str,
) -> str:
    """Return what a convolution costs, and what other shapes of it would.

    image: `BATCHxSIZE...xCHANNELS` of one device.
    kernel: `TAPS...xCHANNELS`, the channels of the result.

    Raise PlanError for a shape that is not one, and HardwareError for an unknown chip.
    """
    device = load_chip(chip).device
    batch, *size, in_channels = _sizes("--input", image, "256x224x224x3")
    *window, out_channels = _sizes("--kernel", kernel, "7x7x64")
    counts = {"--stride": stride, "--dilation": dilation, "--groups": groups}
    for option, value in counts.items():
        if value < 1:
            raise PlanError(f"{option} is {value}; write 1 or more")
    work = convolution_work(
        batch, size, window, in_channels, out_channels, stride=stride, dilation=dilation,
        groups=groups, padding=padding.upper(), gradient=gradient or "", dtype=dtype,
        item=DTYPE_BYTES.get(dtype, 0.0),  # an unknown one has no matrix rate, which costing says
    )  # fmt: skip
    return str(explain_convolutions([(f"{image} by {kernel}", work)], device))


def _sizes(option: str, text: str, example: str) -> list[int]:
    """Return the sizes in a text such as `7x7x64`. Raise PlanError if it has fewer than two."""
    if not re.fullmatch(r"[1-9][0-9]{0,8}(x[1-9][0-9]{0,8}){1,4}", text):
        raise PlanError(f"{option} is {text!r}; write sizes such as {example}")
    return [int(size) for size in text.split("x")]
