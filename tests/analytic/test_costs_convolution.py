"""Convolutions: closed forms, and the compiler's estimates of some hundred."""

from dataclasses import replace
from statistics import median, quantiles

import pytest
from convolutions import Estimate, estimated_device, estimates
from torus import (
    LAUNCHES,
    LOADED,
    channel_seconds,
    depthwise_seconds,
    full_batch,
    is_depthwise,
    pass_matmuls,
    reads_again,
    stored_elements,
    tile_stretch,
)

from tpusim.costs import convolution_seconds, fastest_way, matmul_seconds, useful_share
from tpusim.hardware import Device, load_chip
from tpusim.program import ConvolutionWork, MatmulWork, convolution_work, round_up

HELD_OUT = [one for one in estimates() if one.held_out]
FITTED = [one for one in estimates() if not one.held_out]


def errors(rows: list[Estimate]) -> list[float]:
    return [abs(one.error) for one in rows]


def ninth_decile(values: list[float]) -> float:
    return quantiles(values, n=10)[-1]


def large(rows: list[Estimate]) -> list[Estimate]:
    """Those whose batch fills a tile of sublanes."""
    return [one for one in rows if one.work.batch >= 8]


@pytest.mark.parametrize(("rows", "least"), [(HELD_OUT, 300), (FITTED, 300)])
def test_near_the_compilers_estimates(rows: list[Estimate], least: int) -> None:
    """The aim is a median of 10 % and a ninth decile of 30 % over five chips.

    It judges passes over the array and tiles of memory; rates of memory are the compiler's, which
    chips do not have (`convolutions`).

    The ninth decile of all held-out ones is 32 %: a batch of 1 to 4 images is cut along a dimension
    or has dilated or spread windows, for which the compiler has more ways than the model.
    """
    assert len(rows) >= least
    assert {one.chip for one in rows} == {"v4", "v5e", "v5p", "v6e", "7x"}
    found = errors(rows)
    assert median(found) <= 0.08
    assert ninth_decile(found) <= (0.34 if rows is HELD_OUT else 0.30)
    assert ninth_decile(errors(large(rows))) <= 0.25


@pytest.mark.parametrize("kind", ["forward", "input gradient", "weight gradient"])
def test_each_direction_is_near_its_estimates(kind: str) -> None:
    of_kind = [one for one in HELD_OUT if one.kind == kind]
    assert median(errors(of_kind)) <= 0.10
    assert ninth_decile(errors(large(of_kind))) <= 0.30


@pytest.mark.parametrize("chip", ["v4", "v5e", "v5p", "v6e", "7x"])
def test_each_chip_is_near_its_estimates(chip: str) -> None:
    of_chip = [one for one in HELD_OUT if one.chip == chip]
    assert median(errors(of_chip)) <= 0.10
    assert ninth_decile(errors(large(of_chip))) <= 0.40


@pytest.mark.parametrize(("group", "typical"), [("dense", 0.10), ("depthwise", 0.10)])
def test_each_kind_of_groups_is_near_its_estimates(group: str, typical: float) -> None:
    assert median(errors([one for one in HELD_OUT if one.group == group])) <= typical


def test_groups_are_nearer_than_a_factor_of_two() -> None:
    """ResNeXt's: the gradients of their weights are up to 60 % too fast."""
    found = errors([one for one in (*HELD_OUT, *FITTED) if one.group == "grouped"])
    assert median(found) <= 0.20


@pytest.mark.parametrize("rows", [HELD_OUT, FITTED])
def test_what_the_array_bounds_takes_what_the_compiler_estimates(rows: list[Estimate]) -> None:
    """With the model's own memory, where the estimate hardly depends on memory at all."""
    bound = [one for one in large(rows) if one.seconds < 1.25 * array_alone(one)]
    found = [one.predicted / one.seconds - 1 for one in bound]
    assert len(bound) >= 60
    assert median(map(abs, found)) <= 0.06
    assert median(found) == pytest.approx(0, abs=0.06)
    assert ninth_decile([abs(each) for each in found]) <= 0.17


def test_no_convolution_is_far_slower_than_the_compiler_estimates() -> None:
    """Memory takes less than it believes, so what takes more is the array's, few images or taps."""
    found = [one.predicted / one.seconds - 1 for one in large(HELD_OUT)]
    assert ninth_decile(found) <= 0.02
    assert median(found) < 0


def array_alone(one: Estimate) -> float:
    """Seconds of the array, or of the vector unit for a depthwise convolution."""
    core = depthwise_seconds if is_depthwise(one.work) else channel_seconds
    return float(core(one.work, estimated_device(one.chip)))


def plain(chip: str = "v5e") -> Device:
    """A device without launches whose array reaches its peak."""
    constants = {"op_launch": 0.0, "matmul_efficiency": 1.0, "matmul_in_step": 1.0}
    return load_chip(chip).replace(**constants).device


def on_chip(work: ConvolutionWork) -> ConvolutionWork:
    """The same work without bytes."""
    return replace(work, read_bytes=0, write_bytes=0)


def test_a_convolution_of_one_tap_is_the_matmul() -> None:
    device = load_chip("v5e").device
    image = on_chip(convolution_work(8, (56, 56), (1, 1), 256, 512))
    work = MatmulWork(1, 8 * 56 * 56, 256, 512, "bf16", 0, 0)
    assert fastest_way(image, device) == work
    more = (LAUNCHES - 1) * device.costs.op_launch
    assert convolution_seconds(image, device) == pytest.approx(matmul_seconds(work, device) + more)


@pytest.mark.parametrize("gradient", ["", "input", "weight"])
def test_taps_and_channels_multiply(gradient: str) -> None:
    """Whole tiles: 9 x 256 x 512 for each of 8 x 56 x 56 outputs, in either direction."""
    device = plain()
    image = on_chip(convolution_work(8, (56, 56), (3, 3), 256, 512, gradient=gradient))
    flops = 2 * 8 * 56 * 56 * 9 * 256 * 512
    assert image.flops == flops
    assert convolution_seconds(image, device) == pytest.approx(flops / device.flops["bf16"])
    assert useful_share(image, device) == pytest.approx(1)


def test_a_stride_multiplies_no_zeros() -> None:
    device = plain()
    times = [
        convolution_seconds(
            on_chip(convolution_work(8, (56, 56), (3, 3), 256, 256, stride=2, gradient=each)),
            device,
        )
        for each in ("", "input", "weight")
    ]
    assert times == pytest.approx([2 * 8 * 28 * 28 * 9 * 256 * 256 / device.flops["bf16"]] * 3)


def test_the_first_convolution_of_a_network_wastes_the_array() -> None:
    """A row of 7 taps of 3 channels is 21 deep of 128, and 64 columns of 128 are results."""
    device = plain()
    image = on_chip(convolution_work(16, (224, 224), (7, 7), 3, 64, stride=2))
    way = fastest_way(image, device)
    assert (way.batch, way.m, way.k, way.n) == (7, 16 * 112 * 112, 21, 64)
    assert useful_share(image, device) == pytest.approx(21 / 128 * 64 / 128)


def test_a_large_batch_packs_all_taps_of_few_channels() -> None:
    """All 49 taps of 3 channels are 147 deep of 256, for 256 images as columns."""
    device = plain()
    image = on_chip(convolution_work(256, (224, 224), (7, 7), 3, 64, stride=2))
    way = fastest_way(image, device)
    assert (way.batch, way.m, way.k, way.n) == (112 * 112, 64, 147, 256)
    assert useful_share(image, device) == pytest.approx(147 / 256)


@pytest.mark.parametrize(("channels", "packed"), [(8, True), (16, True), (24, False), (64, False)])
def test_taps_are_packed_up_to_a_tile_of_sublanes(channels: int, packed: bool) -> None:
    way = fastest_way(convolution_work(256, (32, 32), (5, 5), channels, channels), plain())
    assert (way.k == 25 * channels) is packed


def test_few_rows_wait_for_the_load_of_the_image() -> None:
    """320 sublanes of 16 bits load in the time of 160 rows, in 3 x 56 of whole tiles, not of 4."""
    device = plain()
    work = on_chip(convolution_work(128, (64, 64), (3, 3), 320, 4))
    rows = round_up(320 / LOADED / 3, 8)
    cycles = 64 * 64 * 9 * 3 * rows / device.mxus
    assert convolution_seconds(work, device) == pytest.approx(cycles / device.clock, rel=0.01)


def test_few_results_have_the_batch_as_columns() -> None:
    """4 results of 320 channels: 4 rows of 3 x 128 for 128 images, not 128 columns for 4."""
    way = fastest_way(convolution_work(128, (64, 64), (3, 3), 320, 4), plain())
    assert (way.m, way.k, way.n) == (4, 320, 128)


def test_narrow_groups_have_the_batch_as_columns() -> None:
    """32 groups of 4 channels: 8 rows of 9 x 128 for 128 images at a position, as compiled.

    The compiler takes 1,864,672 cycles on v5e, of which 1,806,336 are those of its arrays, and
    983,660 on v6e, whose arrays of 256 take two groups at a time: 903,168.
    """
    image = on_chip(convolution_work(64, (56, 56), (3, 3), 128, 128, groups=32))
    for chip, cycles in (("v5e", 1_806_336), ("v6e", 903_168)):
        device = plain(chip)
        way = fastest_way(image, device)
        assert (way.batch, way.m, way.k, way.n) == (32 * 9 * 56 * 56, 4, 4, 64)
        expected = pytest.approx(cycles / device.clock, rel=0.01)
        assert convolution_seconds(image, device) == expected


@pytest.mark.parametrize(
    ("batch", "channels", "elements"),
    [
        (8, 128, 8 * 128),
        (8, 64, 8 * 128),  # half of the lanes are empty
        (12, 128, 16 * 128),
        (256, 64, 256 * 64),  # the batch is in the lanes
        (256, 3, 256 * 4),
        (2, 128, 2 * 128),  # positions are beside it in the sublanes
    ],
)
def test_memory_is_in_whole_tiles(batch: int, channels: int, elements: int) -> None:
    assert stored_elements(batch, channels) == elements


def test_bytes_grow_to_whole_tiles_unless_they_count_them() -> None:
    work = convolution_work(64, (56, 56), (1, 1), 64, 256)
    image, kernel = 64 * 56 * 56 * 64, 64 * 256
    assert tile_stretch(work) == (pytest.approx((2 * image + kernel) / (image + kernel)), 1)
    assert tile_stretch(replace(work, tiled=True)) == (1, 1)


def test_a_small_batch_cuts_the_image() -> None:
    """32 and the edge of a 3-wide window in 8 parts are 8 x 5: as compiled programs have it."""
    small = convolution_work(2, (32, 32, 32), (3, 3, 3), 128, 128)
    assert full_batch(small) == pytest.approx(40 / 32)
    assert full_batch(replace(small, batch=8)) == full_batch(replace(small, taps=1)) == 1
    tiny = convolution_work(4, (4, 4, 4), (3, 3, 3), 128, 128)
    assert full_batch(tiny) == 2


def test_dilated_windows_read_their_gaps_again() -> None:
    """Taps at distances of 9 add 8 of 16 positions twice; far ones are read once a tap."""
    near, apart, far = (
        convolution_work(8, (128, 128), (3, 3), 256, 256, dilation=each) for each in (1, 9, 99)
    )
    assert (reads_again(near), reads_again(apart), reads_again(far)) == (1, 2**2, 3**2)
    times = [convolution_seconds(each, load_chip("v4").device) for each in (near, apart, far)]
    assert times == sorted(times)


def test_depthwise_taps_shift_registers() -> None:
    """32 taps on 16 x 512 x 512 elements, two cycles for 1024 of them; v5p has two cores."""
    work = convolution_work(16, (512,), (32,), 512, 512, groups=512)
    cycles = 2 * 32 * 16 * 512 * 512 / 1024
    for chip, cores in (("v5e", 1), ("v5p", 2)):
        device = load_chip(chip).device
        assert depthwise_seconds(work, device) == pytest.approx(cycles / cores / device.clock)
        assert useful_share(work, device) == 0


@pytest.mark.parametrize("chip", ["v2", "v4", "v6e", "7x"])
def test_bytes_move_as_those_of_matmuls(chip: str) -> None:
    """Operands and results, in either direction, beside the array: also where a stride spreads."""
    device = load_chip(chip).device
    for gradient in ("", "input", "weight"):
        work = convolution_work(8, (56, 56), (3, 3), 256, 256, stride=2, gradient=gradient)
        moving = replace(work, tiled=True, read_bytes=6e9, write_bytes=2e9)
        matmul = MatmulWork(1, 8, 128, 128, "bf16", 6e9, 2e9)
        expected = pytest.approx(float(matmul_seconds(matmul, device)), rel=1e-3)
        assert convolution_seconds(moving, device) == expected


def test_passes_have_all_multiplications() -> None:
    work = convolution_work(16, (28, 28), (3, 3), 128, 256)
    for way in pass_matmuls(work):
        assert 2 * way.batch * way.m * way.k * way.n == pytest.approx(work.flops)


@pytest.mark.parametrize("taps", [1, 3])
def test_vector_work_runs_beside_the_array(taps: int) -> None:
    """Fused operations cost nothing while the array is busy, and their own time beyond."""
    work = ConvolutionWork(
        128, 784, taps**2, 128, 128, "bf16", 0, 0, window=(taps, taps), tiled=True
    )
    device = load_chip("v5e").device
    alone = convolution_seconds(work, device)
    array = alone - 2 * device.costs.op_launch
    rate = device.vpu_flops * device.costs.vector_efficiency
    half, twice = (replace(work, epilogue_flops=n * array * rate) for n in (0.5, 2.0))
    assert convolution_seconds(half, device) == pytest.approx(alone)
    assert convolution_seconds(twice, device) == pytest.approx(alone + array)
