"""Matmul seconds against the compiler's estimates, measured matmuls, and limits done by hand."""

import csv
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from tpusim.costs import attention_seconds, matmul_seconds
from tpusim.hardware import Device, load_chip
from tpusim.program import (
    AttentionWork,
    MatmulWork,
    equivalent_matmul,
    grid_steps,
    grouped_bytes_read,
    kernel_rows,
)

ESTIMATES = Path(__file__).with_name("compiler_matmuls.csv")


def bf16(m: int, k: int, n: int) -> MatmulWork:
    return MatmulWork(1, m, k, n, "bf16", 2 * (m * k + k * n), 2 * m * n)


def seconds(chip: str, m: int, k: int, n: int) -> float:
    return float(matmul_seconds(bf16(m, k, n), load_chip(chip).device))


FITTED_SHARE = {"v4": 0.904, "v5e": 0.970, "v5p": 0.966, "v6e": 0.935, "7x": 0.844}
"""What large matmuls reach in the compiler's estimates. Chips reach 0.95 to 0.98 of that, so the
catalogue's shares are lower; here the form of the equation is held against the estimates."""


def fitted_seconds(chip: str, m: int, k: int, n: int) -> float:
    device = load_chip(chip).replace(matmul_efficiency=FITTED_SHARE[chip]).device
    return float(matmul_seconds(bf16(m, k, n), device))


def estimate_errors(chip: str) -> list[float]:
    lines = [line for line in ESTIMATES.read_text().splitlines() if not line.startswith("#")]
    rows = [row for row in csv.DictReader(lines) if row["chip"] == chip]
    shapes = [tuple(int(row[axis]) for axis in "mkn") for row in rows]
    estimates = [float(row["cycles"]) / float(row["clock_hz"]) for row in rows]
    predicted = [fitted_seconds(chip, *shape) for shape in shapes]
    return [time / said - 1 for time, said in zip(predicted, estimates, strict=True)]


@pytest.mark.parametrize(
    ("chip", "typical", "worst"),
    [
        # Worst but for v6e is 1024 cubed, 23 to 36 % below: its few tiles cannot hide each other.
        ("v4", 0.035, 0.28),
        ("v5e", 0.02, 0.30),
        ("v5p", 0.04, 0.26),
        ("v6e", 0.08, 0.45),  # the compiler gives 4096x1024x16384 0.48 of peak, and 8192 cubed 0.70
        ("7x", 0.08, 0.40),
    ],
)
def test_near_the_compilers_estimates(chip: str, typical: float, worst: float) -> None:
    errors = [abs(error) for error in estimate_errors(chip)]
    assert len(errors) == 14
    assert median(errors) < typical
    assert max(errors) < worst


@pytest.mark.parametrize(
    ("chip", "n", "share_of_peak", "bound"),
    [
        ("v5e", 4096, 0.843, 0.10),  # jax docs/pallas/tpu/matmul.ipynb, XLA
        ("v5e", 8192, 0.923, 0.03),
        ("v6e", 4096, 0.915, 0.05),  # tpu-recipes microbenchmarks/README.md
        ("v6e", 8192, 0.900, 0.05),
    ],
)
def test_near_measured_efficiency(chip: str, n: int, share_of_peak: float, bound: float) -> None:
    measured = 2 * n**3 / (share_of_peak * load_chip(chip).device.flops["bf16"])
    assert seconds(chip, n, n, n) == pytest.approx(measured, rel=bound)


@pytest.mark.parametrize(
    ("chip", "dtype", "n", "estimate", "bound"),
    [
        ("v4", "int8", 8192, 1.081, 0.08),
        ("v5e", "int8", 4096, 0.501, 0.01),
        ("v5e", "int8", 8192, 0.453, 0.11),  # its bf16 estimate at 8192 is 9 % slower than at 6144
        ("v5p", "int8", 4096, 0.505, 0.01),
        ("v5p", "int8", 8192, 0.517, 0.04),
        ("v5p", "fp8", 8192, 1.027, 0.03),
        # As odd as v6e's bf16 estimate of 8192 cubed (0.70 of peak). A step of 175B in int8 took
        # 0.83 of its bf16 time, and is predicted with the whole gain.
        ("v6e", "int8", 4096, 0.751, 0.32),
        ("v6e", "int8", 8192, 0.586, 0.15),
        ("7x", "fp8", 8192, 0.47, 0.07),
    ],
)
def test_near_the_compilers_gain_of_narrow_operands(
    chip: str, dtype: str, n: int, estimate: float, bound: float
) -> None:
    """Time in the narrow dtype over that in bf16, m = k = n; libtpu 0.0.42.1."""
    narrow = MatmulWork(1, n, n, n, dtype, 2 * n * n, 2 * n * n)
    ratio = matmul_seconds(narrow, load_chip(chip).device) / seconds(chip, n, n, n)
    assert ratio == pytest.approx(estimate, rel=bound)


@pytest.mark.parametrize(("dtype", "side", "rows"), [("bf16", 256, 8), ("fp8", 512, 32)])
def test_the_tile_follows_the_dtype(dtype: str, side: int, rows: int) -> None:
    """7x multiplies fp8 as an array of 512 would, and bytes lie in tiles of 32 rows."""
    device = plain("7x")

    def time(m: int, k: int) -> float:
        return float(matmul_seconds(MatmulWork(1, m, k, 4096, dtype, 0, 0), device))

    assert time(rows, 1) == time(1, side) == time(rows, side)
    assert time(rows + 1, side) == pytest.approx(2 * time(rows, side))
    assert time(rows, side + 1) == pytest.approx(2 * time(rows, side))


@pytest.mark.parametrize(
    ("n", "microseconds", "bound"),
    [
        (128, 1.62, 0.05),
        (256, 1.83, 0.10),
        (512, 2.55, 0.20),
        (
            1024,
            6.14,
            0.36,
        ),  # prologue and epilogue of few tiles hide badly, and the form hides them
        (2048, 25.3, 0.25),
        (4096, 153.9, 0.08),
        (16384, 9258, 0.03),
        (32768, 73578, 0.02),
    ],
)
def test_near_measured_7x_times(n: int, microseconds: float, bound: float) -> None:
    """tpu-recipes microbenchmarks/ironwood/README.md @c8cfe2f, one device."""
    assert seconds("7x", n, n, n) * 1e6 == pytest.approx(microseconds, rel=bound)


@pytest.mark.parametrize("chip", ["v2", "v3", "v4", "v5e", "v5p", "v6e", "7x"])
@pytest.mark.parametrize("m", [1, 8])
def test_matrix_vector_is_bound_by_hbm(chip: str, m: int) -> None:
    device = load_chip(chip).device
    costs = device.costs
    reached = costs.matmul_read or costs.hbm_read or costs.hbm_efficiency
    read = 2 * 8192 * 8192 / (device.hbm_bandwidth * reached)
    launch = device.costs.op_launch
    assert seconds(chip, m, 8192, 8192) - launch == pytest.approx(read, rel=0.02)


def plain(chip: str) -> Device:
    """A chip without launch times and with the HBM of many: the array alone."""
    return load_chip(chip).replace(op_launch=0.0, hbm_bandwidth=1e18, matmul_efficiency=1.0).device


@pytest.mark.parametrize(("chip", "side"), [("v5e", 128), ("v6e", 256)])
def test_k_rounds_up_to_the_array_side(chip: str, side: int) -> None:
    device = plain(chip)
    full = matmul_seconds(bf16(4096, side, 4096), device)
    assert matmul_seconds(bf16(4096, 1, 4096), device) == pytest.approx(full)
    assert matmul_seconds(bf16(4096, side + 1, 4096), device) == pytest.approx(2 * full)
    assert full == pytest.approx(2 * 4096 * side * 4096 / device.flops["bf16"])


def test_m_fills_sublanes_and_n_is_linear_above_the_side() -> None:
    device = plain("v5e")
    assert matmul_seconds(bf16(1, 512, 512), device) == matmul_seconds(bf16(8, 512, 512), device)
    narrow, wide = (matmul_seconds(bf16(512, 512, n), device) for n in (1, 128))
    assert narrow == wide
    assert matmul_seconds(bf16(512, 512, 200), device) == pytest.approx(200 / 128 * wide)


def test_overlap_of_one_adds_array_and_memory() -> None:
    chip = load_chip("v5e").replace(matmul_overlap=1.0, op_launch=0.0)
    device, work = chip.device, bf16(1024, 1024, 1024)
    array = 2 * 1024**3 / (device.flops["bf16"] * device.costs.matmul_efficiency)
    memory = 6 * 1024**2 / (device.hbm_bandwidth * device.costs.hbm_efficiency)
    assert matmul_seconds(work, device) == pytest.approx(array + memory)


def test_near_measured_splash_attention() -> None:
    """v5p, causal, one sequence of 8192, 8 heads of 128, blocks of 512: 0.778 ms (marin #6330)."""
    tensor = 2 * 8 * 8192 * 128
    kernel = AttentionWork(1, 8, 8192, 8192, 128, "bf16", True, 0, False, 3 * tensor, tensor)
    predicted = attention_seconds(kernel, load_chip("v5p").device)
    assert predicted == pytest.approx(0.778e-3, rel=0.08)


@pytest.mark.parametrize(
    ("groups", "rows", "worked"),
    [
        (1, 4096, 4096),
        (1, 100, 104),  # one tile of 13 x 8 rows
        (8, 1024, (16 + 7) * 512),
        (256, 1024, (512 + 255) * 512),
        (256, 16, (8 + 255) * 512),  # each group of 16 rows visits a whole tile
        (4, 8, (1 + 3) * 32),
    ],
)
def test_a_grouped_kernel_works_on_whole_tiles(groups: int, rows: int, worked: int) -> None:
    assert kernel_rows(groups, rows) == worked


def grouped(batch: int, m: int, k: int, n: int, ragged: str) -> MatmulWork:
    read = grouped_bytes_read(batch, m, k, n, ragged, 2.0)
    return MatmulWork(batch, m, k, n, "bf16", read, 2 * batch * m * n, ragged=ragged)


def test_small_experts_slow_a_grouped_kernel_and_leave_a_batch_alone() -> None:
    """The array's time grows by the tiles visited; forward and for weight gradients alike."""
    device = load_chip("v5p").replace(kernel_step=0.0).device
    one = MatmulWork(256, 1024, 7168, 2048, "bf16", 0, 0)
    forward = replace(one, ragged="m")
    weights = MatmulWork(256, 7168, 1024, 2048, "bf16", 0, 0, ragged="k")
    ratio = (512 + 255) * 512 / (256 * 1024)
    alone, both = (float(matmul_seconds(work, device)) for work in (one, forward))
    launch = device.costs.op_launch
    assert (both - launch) / (alone - launch) == pytest.approx(ratio)
    assert float(matmul_seconds(weights, device)) == pytest.approx(both)


def test_a_width_that_tiles_do_not_divide_is_rounded_up() -> None:
    """1536 is computed as 2048, whether it is the columns or what is summed."""
    assert equivalent_matmul(grouped(1, 4096, 4096, 1536, "m")) == (1, 4096, 4096, 2048)
    assert equivalent_matmul(grouped(1, 4096, 1536, 4096, "m")) == (1, 4096, 2048, 4096)
    assert equivalent_matmul(grouped(1, 1536, 4096, 4096, "k")) == (1, 2048, 4096, 4096)
    assert equivalent_matmul(grouped(1, 4096, 4096, 768, "m")) == (1, 4096, 4096, 768)
    assert equivalent_matmul(grouped(1, 4096, 4096, 704, "m")) == (1, 4096, 4096, 768)


@pytest.mark.parametrize(
    ("cores", "tile", "columns"),
    [
        (1, 512, 1536),  # three tiles, one after the other
        (2, 512, 2048),  # three tiles on two cores: two on one of them
        (2, 1024, 2048),  # a tile each, the second half empty
        (2, 1536, 3072),  # one tile: a core has none
        (1, 1024, 2048),
        (1, 1536, 1536),
        (1, 704, 1536),  # in lanes, 768 twice
    ],
)
def test_cores_share_the_columns_of_a_grouped_kernel_by_whole_tiles(
    cores: int, tile: int, columns: int
) -> None:
    """Columns alone are parallel; rows and what is summed are not divided, whoever has them."""
    rows, side = 4096, 4096
    forward = MatmulWork(1, rows, side, 1536, "bf16", 0, 0, ragged="m", tiles=(512, 1024, tile))
    weights = replace(forward, m=side, k=rows, ragged="k", tiles=(1024, 512, tile))
    assert equivalent_matmul(forward, cores) == (1, rows, side, columns)
    assert equivalent_matmul(weights, cores) == (1, side, rows, columns)
    turned = replace(forward, k=1536, n=side, tiles=(512, tile, 1024))
    whole = -(-1536 // (-(-tile // 128) * 128)) * (-(-tile // 128) * 128)
    assert equivalent_matmul(turned, cores) == (1, rows, whole, side)


def test_a_chip_of_two_cores_has_one_idle_where_tiles_are_odd() -> None:
    """v5p, three tiles of 512: 4/3 of the time on the array; 7x, whose device is a core, all."""
    for chip, ratio in (("v4", 4 / 3), ("v5p", 4 / 3), ("v6e", 1.0), ("7x", 1.0)):
        device = load_chip(chip).replace(kernel_step=0.0).device
        work = MatmulWork(1, 8192, 4096, 1536, "bf16", 0, 0)
        alone = float(matmul_seconds(work, device)) - device.costs.op_launch
        tiled = replace(work, ragged="m", tiles=(512, 1024, 512))
        grouped_s = float(matmul_seconds(tiled, device)) - device.costs.op_launch
        assert grouped_s / alone == pytest.approx(ratio), chip


def test_small_tiles_read_operands_more_often() -> None:
    """Rows once for each tile of columns: eight times at 512 of 4096, twice at 2048."""
    rows, k, n = 8 * 1024, 2048, 4096
    visits = 8 * 1024 // 256 + 7
    for tile, times in ((512, 8), (2048, 2)):
        read = grouped_bytes_read(8, 1024, k, n, "m", 2.0, (256, 1024, tile))
        assert read == 2 * (rows * k * times + visits * k * n)


def test_a_grouped_kernel_reads_operands_once_a_tile() -> None:
    """The kernel's own estimate, and its limit: one tile of each reads each operand once."""
    rows, k, n = 8 * 1024, 2048, 4096
    visits = 8 * 1024 // 512 + 7
    assert grouped_bytes_read(8, 1024, k, n, "m", 2.0) == 2 * (rows * k * 4 + visits * k * n)
    assert grouped_bytes_read(8, k, 1024, n, "k", 2.0) == 2 * (rows * k * 4 + rows * n * 2)
    assert grouped_bytes_read(1, 512, 1024, 1024, "m", 2.0) == 2 * (512 * 1024 + 1024 * 1024)


def test_a_grouped_kernel_of_one_group_and_whole_tiles_takes_the_array_as_long() -> None:
    device = load_chip("v6e").replace(kernel_step=0.0).device
    work = bf16(8192, 4096, 2048)
    assert matmul_seconds(replace(work, ragged="m"), device) == matmul_seconds(work, device)


@pytest.mark.parametrize(
    ("cores", "tiles", "steps"),
    [
        (1, (), (16 + 7) * 4 * 2),
        (2, (), (16 + 7) * 4),
        (1, (512, 2048, 1536), (16 + 7) * 2),
        (2, (512, 2048, 1536), (16 + 7) * 2),  # one tile of columns: one core has none
        (2, (512, 1024, 512), (16 + 7) * 4 * 2),  # two of three tiles on one core
        (1, (1024, 4096, 1536), 8 + 7),
        (1, (8192, 4096, 1536), 8),  # a tile has all rows, once for each group
    ],
)
def test_a_grouped_kernel_steps_over_tiles_of_rows_sums_and_columns(
    cores: int, tiles: tuple[int, ...], steps: int
) -> None:
    """8 groups of 1024 rows, [4096, 1536] each; the gradient of the matrices steps as often."""
    forward = MatmulWork(8, 1024, 4096, 1536, "bf16", 0, 0, ragged="m", tiles=tiles)
    assert grid_steps(forward, cores) == steps
    rows, height, width = tiles or (512, 1024, 1024)
    turned = (height, rows, width) if tiles else ()
    weights = MatmulWork(8, 4096, 1024, 1536, "bf16", 0, 0, ragged="k", tiles=turned)
    assert grid_steps(weights, cores) == steps
    assert grid_steps(replace(forward, ragged=""), cores) == 0


def test_a_step_of_a_grouped_kernel_takes_as_long_as_one_of_attention() -> None:
    """`kernel_step` beside the array, so default tiles take longer for 1536 columns than wide ones.

    Measured steps of Hunyuan 3 on 7x, half of which are such kernels: 1.17 and 1.19.
    """
    chip = load_chip("7x")
    device, free = chip.device, chip.replace(kernel_step=0.0).device
    default = MatmulWork(192, 1365, 4096, 1536, "bf16", 0, 0, ragged="m")
    for work in (default, replace(default, tiles=(512, 2048, 1536))):
        steps = grid_steps(work) * device.costs.kernel_step
        assert matmul_seconds(work, device) == pytest.approx(matmul_seconds(work, free) + steps)
    wide = matmul_seconds(replace(default, tiles=(512, 2048, 1536)), device)
    assert 1.4 < matmul_seconds(default, device) / wide < 1.7


@pytest.mark.parametrize(("tile", "times"), [(1024, 23), (3968, 23), (4096, 8), (8192, 8)])
def test_a_tile_of_all_that_is_summed_keeps_the_matrix_of_its_group(tile: int, times: int) -> None:
    """Else its block changes with each step, and comes again for each of 16 + 7 tiles of rows."""
    read = grouped_bytes_read(8, 1024, 4096, 1536, "m", 2.0, (512, tile, 1536))
    assert read == 2 * (8 * 1024 * 4096 + times * 4096 * 1536)


def test_what_is_fused_to_a_matmul_runs_beside_its_loads() -> None:
    """A step of a ring adds its product to what it has: HBM holds it up, the additions do not.

    Where the array is the slower, they are seen.
    """
    device = load_chip("v5p").device
    ring = replace(bf16(65536, 256, 7168), read_bytes=1.9e9)
    wide = bf16(8192, 8192, 8192)
    for work, low, high in ((ring, 0, 0.02), (wide, 0.09, 0.11)):
        alone = float(matmul_seconds(work, device))
        added = 0.1 * alone * device.vpu_flops * device.costs.vector_efficiency
        fused = float(matmul_seconds(replace(work, epilogue_flops=added), device))
        assert low <= fused / alone - 1 <= high
