"""The compiler's estimates of convolutions, with the work of each.

The compiler takes results to leave at a quarter of HBM's bandwidth or so, and the gradient of a
strided input to hide nothing, which no chip does: a profile of v2 has neither
(`analytic/test_profiled_convolutions.py`). `believed_seconds` has its beliefs about memory, and the
model's passes over the array and tiles, so that these are what the estimates judge.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path

from torus import LAUNCHES, channel_seconds, depthwise_seconds, is_depthwise, tile_stretch

from tpusim.costs import convolution_seconds
from tpusim.hardware import Device, load_chip
from tpusim.program import ConvolutionWork, convolution_work

ESTIMATES = Path(__file__).with_name("analytic") / "compiler_convolutions.csv"

FITTED_SHARE = {"v4": 0.904, "v5e": 0.970, "v5p": 0.966, "v6e": 0.935, "7x": 0.844}
"""Share of peak that large matmuls reach in the compiler's estimates; chips reach less."""

BELIEVED_RATES = {
    "v4": (0.72, 0.26), "v5e": (0.64, 0.265), "v5p": (0.55, 0.23), "v6e": (0.81, 0.29),
    "7x": (0.66, 0.31),
}  # fmt: skip
"""Shares of HBM's bandwidth at which the compiler takes operands to arrive, and results to leave,
in whole memory tiles. Fitted to the estimates that are not held out."""

BELIEVED_OVERLAP = 2.5
"""Exponent p of `(core^p + memory^p)^(1/p)`; 1 for the gradient of a strided input, whose results
are spread over windows that the next ones complete. Fitted to the same."""

GRADIENT = {"forward": "", "input gradient": "input", "weight gradient": "weight"}
TRANSPOSED = {"": "input", "input": "", "weight": "weight"}


@dataclass(frozen=True)
class Estimate:
    """A convolution, and the compiler's estimate in seconds."""

    chip: str
    kind: str
    family: str
    held_out: bool
    work: ConvolutionWork
    seconds: float

    @property
    def error(self) -> float:
        """Time with the model's passes and tiles over the estimated one, less 1."""
        return believed_seconds(self.work, self.chip) / self.seconds - 1

    @property
    def predicted(self) -> float:
        """What the model says of the chip, if its array were as fast as the compiler takes it."""
        return float(convolution_seconds(self.work, estimated_device(self.chip)))

    @property
    def group(self) -> str:
        """`dense`, `grouped` or `depthwise`."""
        if self.work.groups == 1:
            return "dense"
        return "depthwise" if self.work.groups == self.work.in_channels else "grouped"


def believed_seconds(work: ConvolutionWork, chip: str) -> float:
    """The model's seconds, but for the memory, which moves as the compiler believes."""
    device, (arriving, leaving) = estimated_device(chip), BELIEVED_RATES[chip]
    core = float((depthwise_seconds if is_depthwise(work) else channel_seconds)(work, device))
    read, store = tile_stretch(work)
    moved = work.read_bytes * read / arriving + work.write_bytes * store / leaving
    spread = work.gradient == "input" and prod(work.strides) > 1 and not is_depthwise(work)
    p = 1.0 if spread else BELIEVED_OVERLAP
    memory = float(moved) / device.hbm_bandwidth
    return (core**p + memory**p) ** (1 / p) + LAUNCHES * device.costs.op_launch


@cache
def estimated_device(chip: str) -> Device:
    """A device whose array is as fast as the compiler takes it to be, alone."""
    share = FITTED_SHARE[chip]
    return load_chip(chip).replace(matmul_efficiency=share, matmul_in_step=1.0).device


def estimates() -> Iterator[Estimate]:
    """All of them."""
    lines = [line for line in ESTIMATES.read_text().splitlines() if not line.startswith("#")]
    for row in csv.DictReader(lines):
        yield Estimate(
            row["chip"], row["kind"], row["family"], row["held_out"] == "1", work_of(row),
            int(row["cycles"]) / int(row["clock_hz"]),
        )  # fmt: skip


def work_of(row: dict[str, str]) -> ConvolutionWork:
    """The work of a line; a transposed convolution is a gradient of the other direction."""
    whole = {name: int(row[name]) for name in ("batch", "stride", "dilation", "groups")}
    size, result, window = (
        [int(side) for side in row[name].split("x")] for name in ("input", "output", "window")
    )
    channels = int(row["in_channels"]), int(row["out_channels"])
    gradient = GRADIENT[row["kind"]]
    if row["transposed"] == "1":
        gradient, size, result, channels = TRANSPOSED[gradient], result, size, channels[::-1]
    batch = whole.pop("batch")
    work = convolution_work(
        batch, size, window, *channels, **whole, padding=row["padding"], gradient=gradient
    )
    assert work.positions == prod(result)
    return work
