"""Images of few examples: which are cut, what parts have beyond their share, and what passes do."""

from typing import Any

import pytest

import tpusim as ts
from tpusim.models import Architecture, DiffusionUNet, ResNet, UNet3d
from tpusim.program import Collective, CollectiveKind, Compute, ConvolutionWork, walk_ops
from tpusim.results import PlanResult

VOLUMES = UNet3d(patch=64, filters=(32, 64))
"""Convolutions of 64 and 32 positions along the width: parts of 8 and 4."""

CUT = ("cut-images", "fill-rows")


def run(
    model: Architecture, examples: int, pod: str = "v5p:2x2x1", spatial: int = 1, **plan: Any
) -> PlanResult:
    """A step with so many examples a device, of 4 devices, or 8 of v2 and v3."""
    chip, _, shape = pod.partition(":")
    slice_ = ts.Slice(chip, shape)
    mesh = {"data": slice_.devices // spatial, "spatial": spatial}
    given = {"remat": "none", "optimizer": "momentum", "rules": {"act_height": "spatial"}} | plan
    return ts.simulate(
        model, ts.Plan(mesh=mesh, global_batch=examples * mesh["data"], **given), slice_
    )


def computes(result: PlanResult) -> dict[str, Compute]:
    return {op.name: op for op, _ in walk_ops(result.programs[0].body) if isinstance(op, Compute)}


def convolution(result: PlanResult, name: str) -> ConvolutionWork:
    work = computes(result)[name].work
    assert isinstance(work, ConvolutionWork)
    return work


def is_cut(result: PlanResult) -> bool:
    return any(name.startswith("image/") for name in computes(result))


@pytest.mark.parametrize("pod", ["v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2", "7x:2x2x1"])
@pytest.mark.parametrize("model", [VOLUMES, ResNet(name="r", blocks=(1, 1, 1, 1))])
def test_images_are_cut_below_eight_examples_a_device(model: Architecture, pod: str) -> None:
    assert is_cut(run(model, 1, pod))
    assert is_cut(run(model, 7, pod))
    assert not is_cut(run(model, 8, pod))


@pytest.mark.parametrize("pod", ["v2:2x2", "v3:2x2"])
def test_on_v2_and_v3_one_example_alone_is_cut(pod: str) -> None:
    assert is_cut(run(VOLUMES, 1, pod))
    assert not is_cut(run(VOLUMES, 2, pod))


def test_eight_parts_lie_in_the_batch() -> None:
    for examples in (1, 3):
        assert convolution(run(VOLUMES, examples), "down0/a").batch == 8 * examples
    assert convolution(run(VOLUMES, 8), "down0/a").batch == 8


@pytest.mark.parametrize(
    ("name", "spatial", "parts"),
    [
        ("down0/a", 1, 9),  # 64 positions and 2 of padding in eight parts
        ("down0/b", 1, 9),  # goes on with what it reads
        ("down1/a", 1, 4),  # whole images, of which the stride leaves 32 positions
        ("down1/b", 1, 4),
        ("up0/up", 1, 8),  # of the 32 positions that it reads, two results each
        ("up0/a", 1, 9),  # the joined channels are cut anew
        ("down1/a", 2, 5),  # rows of other devices join the image: it is padded again
        ("down1/b", 2, 5),
    ],
)
def test_parts_of_forward_convolutions(name: str, spatial: int, parts: int) -> None:
    """Positions that are multiplied along the width of a part, as compiled programs have them."""
    work = convolution(run(VOLUMES, 1, "v4:2x2x1", spatial), name)
    side = 32 if name.startswith("down1") or name == "up0/up" else 64
    width = {"up0/up": 4}.get(name, parts)
    assert work.positions == side * (side // spatial) * width


def test_parts_are_at_least_as_long_as_a_halo() -> None:
    """A window of 3 reaches over 2 positions: parts of 2 are cut, of 1 are not."""
    for patch, cut in ((16, True), (8, False)):
        assert is_cut(run(UNet3d(patch=patch, filters=(32,)), 1)) is cut


def test_positions_without_data_are_padding() -> None:
    few = run(VOLUMES, 1)
    without = run(VOLUMES, 1, without_passes=CUT)
    assert few.flops.model == without.flops.model
    assert few.flops.padding > without.flops.padding == 0
    assert few.step_time_s > 1.5 * without.step_time_s


def test_an_ideal_compiler_cuts_nothing() -> None:
    assert not is_cut(run(VOLUMES, 1, lowering="ideal"))


def test_statistics_of_an_example_are_summed_from_whole_images() -> None:
    """Squares in f32, and x itself, are turned; of a batch norm, parts are summed as they are."""
    found = computes(run(VOLUMES, 1))
    squares = "down0/a_norm/own_sums product 0"
    assert squares in {alloc.tensor for alloc in found["down0/a"].allocs}
    turned = [name for name in found if name.endswith("turned for down0/a_norm/own_sums")]
    assert len(turned) == 2
    batch = computes(run(ResNet(name="r", blocks=(1, 1, 1, 1)), 1))
    assert not any("product" in name for name in batch)


def test_parts_without_spare_are_summed_as_they_are() -> None:
    assert not any("turned for down1/a_norm" in name for name in computes(run(VOLUMES, 1)))


def test_statistics_of_several_examples_are_spread_over_their_images() -> None:
    def spread(examples: int) -> int:
        return sum(" statistics " in name for name in computes(run(VOLUMES, examples)))

    assert spread(1) == 0
    assert spread(2) > 0


def test_gradients_of_kernels_come_last() -> None:
    for spatial in (1, 2):
        names = [*computes(run(VOLUMES, 1, "v4:2x2x1", spatial))]
        assert names.index("down0/a/dw") > names.index("down0/b/dx")
        assert names.index("up0/b/dw") > names.index("down0/b/dx")


def test_other_devices_send_rows_of_whole_images() -> None:
    """The image is put together before its rows are sent, and cut again with those that came."""
    ops = [op for op, _ in walk_ops(run(VOLUMES, 1, "v4:2x2x1", 2).programs[0].body)]
    names = [op.name for op in ops]
    sent = next(
        at
        for at, op in enumerate(ops)
        if isinstance(op, Collective)
        and op.kind is CollectiveKind.PERMUTE
        and "down0/a_relu" in op.name
    )
    assert names.index("image/down0/a_relu whole") < sent
    assert names.index("image/down0/a_relu for down0/b") > sent


def test_groups_of_channels_and_attention_are_cut_too() -> None:
    model = DiffusionUNet(name="d", channels=(320, 640), blocks=1, attention_levels=1)
    found = run(model, 2, "v6e:2x2")
    assert is_cut(found)
    assert not is_cut(run(model, 8, "v6e:2x2"))


@pytest.mark.parametrize("pod", ["v2:2x2", "v3:2x2"])
def test_two_examples_fill_four_rows_on_v2_and_v3(pod: str) -> None:
    """Tiles of four rows: 2 examples take the bytes of 4, and 4 their own."""

    def held(examples: int, *without: str) -> float:
        result = run(VOLUMES, examples, pod, without_passes=without)
        allocs = computes(result)["down0/a"].allocs
        return float(next(a.bytes for a in allocs if a.tensor == "down0/a_out"))

    assert held(2) == held(4) == 2 * held(2, "fill-rows")
    assert held(4) == held(4, "fill-rows")
