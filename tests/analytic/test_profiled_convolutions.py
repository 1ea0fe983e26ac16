"""Convolutions of a profile of ResNet-50 on v2, and what the memory's bus shows there.

The profile says how many bytes each moved, with those of what is fused to it, but not the vector
operations, which are those of the plan of the same step.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from statistics import median, quantiles

import pytest
from torus import hbm_seconds

import tpusim as ts
from tpusim.costs import convolution_seconds, matmul_seconds
from tpusim.hardware import load_chip
from tpusim.models import ResNet
from tpusim.program import Compute, ConvolutionWork, MatmulWork, convolution_work

PROFILE = Path(__file__).with_name("profiled_convolutions.csv")
GRADIENT = {"Conv2D": "", "Conv2DBackpropInput": "input", "Conv2DBackpropFilter": "weight"}
DEVICE = load_chip("v2").device


@dataclass(frozen=True)
class Profiled:
    """A convolution with the bytes of all that is fused to it, and its seconds."""

    work: ConvolutionWork
    seconds: float
    held_out: bool

    @property
    def ratio(self) -> float:
        """Measured over predicted time."""
        return self.seconds / float(convolution_seconds(self.work, DEVICE))


def profiled() -> Iterator[Profiled]:
    lines = [line for line in PROFILE.read_text().splitlines() if not line.startswith("#")]
    for row in csv.DictReader(lines):
        batch, taps, side, stride, times = (
            int(row[name]) for name in ("batch", "taps", "side", "stride", "convolutions")
        )
        work = convolution_work(
            batch, (side * stride,) * 2, (taps,) * 2, int(row["in_channels"]),
            int(row["out_channels"]), stride=stride, gradient=GRADIENT[row["operation"]],
            dtype="f32", item=4,
        )  # fmt: skip
        took = float(row["microseconds"]) / 1e6 / times
        moved = float(row["gigabytes_per_second"]) * 1e9 * took
        written = min(work.write_bytes, moved)
        planned = PLANNED[plan_name(row["layer"], row["operation"])]
        moving = replace(
            work, read_bytes=moved - written, write_bytes=written, tiled=True,
            epilogue_flops=planned.epilogue_flops,
        )  # fmt: skip
        yield Profiled(moving, took, row["held_out"] == "1")


def plan_name(layer: str, operation: str) -> str:
    """The plan's name of a convolution of Keras: `res4b_branch2c` is `2.1/c`."""
    end = {"": "", "input": "/dx", "weight": "/dw"}[GRADIENT[operation]]
    if layer == "conv1":
        return f"stem{end}"
    place, branch = layer.removeprefix("res").split("_branch")
    return f"{int(place[0]) - 2}.{ord(place[1]) - ord('a')}/{branch[1:] or 'short'}{end}"


STEP = ts.simulate(
    ResNet.published("resnet-50", norm="device"),
    ts.Plan(
        global_batch=1024, mesh={"data": 8}, remat="none", optimizer="momentum", dtype="f32"
    ),
    "v2:2x2",
)  # fmt: skip
"""The plan of the step: batch 128 a core, all in f32; its optimizer is not known."""

PLANNED = {
    op.name: op.work
    for op in STEP.program.body
    if isinstance(op, Compute) and isinstance(op.work, ConvolutionWork)
}
ROWS = list(profiled())


@pytest.mark.parametrize("held_out", [False, True])
def test_near_the_profile(held_out: bool) -> None:
    ratios = [row.ratio for row in ROWS if row.held_out is held_out]
    errors = [abs(1 / ratio - 1) for ratio in ratios]
    assert len(ratios) >= 70
    assert median(errors) <= 0.03
    assert quantiles(errors, n=10)[-1] <= 0.15
    assert median(ratios) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("gradient", ["", "input", "weight"])
def test_each_direction_is_near_the_profile(gradient: str) -> None:
    ratios = [row.ratio for row in ROWS if row.work.gradient == gradient]
    assert median(ratios) == pytest.approx(1, abs=0.04)
    assert quantiles([abs(1 / each - 1) for each in ratios], n=10)[-1] <= 0.15


def test_strided_gradients_overlap_like_the_others() -> None:
    found = [r for r in ROWS if r.work.gradient == "input" and prod(r.work.strides) > 1]
    assert median(row.ratio for row in found) == pytest.approx(1, abs=0.1)
    apart = load_chip("v2").replace(matmul_overlap=1.0).device
    assert all(row.seconds < 0.95 * convolution_seconds(row.work, apart) for row in found)


def as_matmul(work: ConvolutionWork) -> MatmulWork:
    """The same single taps as a matmul of positions and channels."""
    rows = work.batch * work.positions
    sizes = {
        "": (rows, work.in_channels, work.out_channels),
        "input": (rows, work.out_channels, work.in_channels),
        "weight": (work.in_channels, rows, work.out_channels),
    }[work.gradient]
    moved = work.read_bytes, work.write_bytes, work.epilogue_flops
    return MatmulWork(1, *sizes, work.dtype, *moved)


def single_taps() -> list[Profiled]:
    """Those whose vector operations would add 5 % or more, if they came after the array."""
    after = load_chip("v2").replace(epilogue_overlap=1.0).device
    beside = load_chip("v2").replace(epilogue_overlap=30.0).device
    plain = [row for row in ROWS if row.work.taps == prod(row.work.strides) == 1]
    return [
        row for row in plain
        if matmul_seconds(as_matmul(row.work), after)
        > 1.05 * matmul_seconds(as_matmul(row.work), beside)
    ]  # fmt: skip


@pytest.mark.parametrize("held_out", [False, True])
def test_a_single_tap_hides_what_is_fused_to_it(held_out: bool) -> None:
    """As a convolution and as a matmul; one after the other they would be 14 % too slow."""
    found = [row for row in single_taps() if row.held_out is held_out]
    assert len(found) >= 10
    assert median(row.ratio for row in found) == pytest.approx(1, abs=0.02)
    matmuls = [row.seconds / matmul_seconds(as_matmul(row.work), DEVICE) for row in found]
    assert median(matmuls) == pytest.approx(1, abs=0.02)
    after = load_chip("v2").replace(epilogue_overlap=1.0).device
    slow = [row.seconds / matmul_seconds(as_matmul(row.work), after) for row in found]
    assert median(slow) < 0.9


def test_the_whole_step_of_the_profile() -> None:
    """313.8 ms, of which convolutions with all that is fused to them take 244.7."""
    assert STEP.step_time_s == pytest.approx(0.3138, rel=0.02)
    assert STEP.breakdown_s["convolution"] == pytest.approx(0.2447, rel=0.06)


@pytest.mark.parametrize(
    ("megabytes", "tensors", "microseconds"),
    [
        (1233.1, 3, 4900.7),  # of the same profile: the addition and ReLU of block 2, activation_3
        (616.6, 3, 2432.5),
        (308.3, 3, 1236.4),
        (154.2, 3, 605.8),
    ],
)
def test_element_wise_groups_of_the_profile(
    megabytes: float, tensors: int, microseconds: float
) -> None:
    """Two tensors are read and one is written: none of these rows had a part in the fit."""
    each = megabytes * 1e6 / tensors
    found = float(hbm_seconds((tensors - 1) * each, each, DEVICE))
    assert found == pytest.approx(microseconds / 1e6, rel=0.03)


def test_reads_and_writes_take_turns() -> None:
    """Reads alone reach `hbm_read`, copies `hbm_efficiency`, either way round."""
    costs, rate = DEVICE.costs, DEVICE.hbm_bandwidth
    assert costs.hbm_read is not None
    alone = 1e9 / (costs.hbm_read * rate)
    assert hbm_seconds(1e9, 0, DEVICE) == pytest.approx(alone)
    assert hbm_seconds(0, 1e9, DEVICE) == pytest.approx(alone)
    assert hbm_seconds(1e9, 1e9, DEVICE) == pytest.approx(2e9 / (costs.hbm_efficiency * rate))
    assert hbm_seconds(2e9, 1e9, DEVICE) == hbm_seconds(1e9, 2e9, DEVICE)


def test_a_chip_that_states_no_rate_of_reads_copies_at_every_mixture() -> None:
    device = load_chip("v5p").device
    assert device.costs.hbm_read is None
    assert hbm_seconds(2e9, 0, device) == pytest.approx(float(hbm_seconds(1e9, 1e9, device)))
