"""The compiler's estimates of convolutions, with the work of each."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path

from tpusim.costs import convolution_seconds
from tpusim.hardware import Device, load_chip
from tpusim.program import ConvolutionWork, convolution_work

ESTIMATES = Path(__file__).with_name("analytic") / "compiler_convolutions.csv"

FITTED_SHARE = {"v4": 0.904, "v5e": 0.970, "v5p": 0.966, "v6e": 0.935, "7x": 0.844}
"""Share of peak that large matmuls reach in the compiler's estimates; chips reach less."""

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
        """Predicted over estimated time, less 1."""
        return float(convolution_seconds(self.work, estimated_device(self.chip))) / self.seconds - 1

    @property
    def group(self) -> str:
        """`dense`, `grouped` or `depthwise`."""
        if self.work.groups == 1:
            return "dense"
        return "depthwise" if self.work.groups == self.work.in_channels else "grouped"


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
