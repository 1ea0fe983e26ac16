"""Networks of convolutions: parameters and FLOPs as published, plans that run, bad input."""

from fractions import Fraction
from math import prod

import pytest
from extent import sample
from small_models import small_metnet2

import tpusim as ts
from tpusim.base import ModelError
from tpusim.models import SSD, Architecture, DiffusionUNet, MaskRCNN, MetNet2, ResNet, UNet3d, names
from tpusim.models.detectors import SSD_BOXES, SSD_STEPS
from tpusim.program import Compute, walk_ops

POD = ts.Slice("v4", "2x2x1")
SMALL_RESNET = ResNet(name="small", blocks=(1, 1, 1, 1), image=64)
SMALL_DIFFUSION = DiffusionUNet(
    name="small", channels=(64, 128), blocks=1, attention_levels=1, latent=16, text_embed=64
)
SMALL: tuple[Architecture, ...] = (
    SMALL_RESNET,
    ResNet(name="group", blocks=(1, 1, 1, 1), image=64, norm="group", preactivation=True),
    ResNet(name="device", blocks=(1, 1), strides=(1, 2), image=64, norm="device"),
    SMALL_DIFFUSION,
    UNet3d(name="small", patch=16, filters=(8, 16, 32)),
    SSD(),
    SSD(name="levels", joins_levels=False),
    MaskRCNN(image=(128, 192), rois=16, mask_rois=8),
    MaskRCNN(name="matmuls", image=(128, 192), rois=16, mask_rois=8, roi_align="matmuls"),
    small_metnet2(),
)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("resnet-18", 11_689_512),
        ("resnet-34", 21_797_672),
        ("resnet-50", 25_557_032),
        ("resnet-101", 44_549_160),
        ("resnet-152", 60_192_808),
        ("bit-r50x1", 25_549_352),
    ],
)
def test_resnets_have_as_many_parameters_as_published(name: str, parameters: int) -> None:
    """torchvision's and timm's counts; BiT's are of its classifier of ImageNet-1k."""
    assert ResNet.published(name).parameter_count == parameters
    assert name in names(ResNet)


def test_other_networks_have_as_many_parameters_as_published() -> None:
    """diffusers' UNet2DConditionModel of v2-base, and torchvision's maskrcnn_resnet50_fpn."""
    diffusion = DiffusionUNet.published("stable-diffusion-v2-base")
    assert diffusion.parameter_count == 865_910_724
    assert DiffusionUNet.published("stable-diffusion-v1").parameter_count == 859_520_964
    assert MaskRCNN().parameter_count == 44_401_393


def test_ssd_has_as_many_parameters_as_published() -> None:
    """20.058 million (OpenVINO's model zoo, ssd-resnet34-1200-onnx: the same layers on images of
    1200 pixels), and by hand those of MLPerf's: three stages, five further levels, two heads each.
    """
    stages = 7 * 7 * 3 * 64 + 6 * 9 * 64**2 + 9 * (64 * 128 + 7 * 128**2) + 64 * 128
    stages += 9 * (128 * 256 + 11 * 256**2) + 128 * 256
    norms = 2 * (64 + 6 * 64 + 9 * 128 + 13 * 256)
    levels, made = 0, [256]
    for inside, out, _ in SSD_STEPS:
        levels += made[-1] * inside + inside + 9 * inside * out + out
        made.append(out)
    heads = sum((9 * n + 1) * 85 * boxes for n, boxes in zip(made, SSD_BOXES, strict=True))
    assert SSD().parameter_count == stages + norms + levels + heads
    assert SSD().parameter_count == pytest.approx(20.058e6, rel=0.01)


def test_regions_multiply_as_they_read() -> None:
    """Rows and columns of the shares of all five levels, for 512 boxes and 128 masks."""
    gathered, multiplied = (
        MaskRCNN(roi_align=how).graph(batch=1).model_flops() for how in ("gather", "matmuls")
    )
    assert MaskRCNN(roi_align="matmuls").parameter_count == MaskRCNN().parameter_count
    sides = [(208 >> level, 336 >> level) for level in range(5)]
    cells = ((512, 7), (128, 14))
    products = sum(
        n * side * 256 * (height * width + side * width)
        for n, side in cells
        for height, width in sides
    )
    assert multiplied - gathered == 2 * products


def test_frozen_stages_have_neither_gradients_nor_moments() -> None:
    whole, frozen = (
        ts.simulate(
            MaskRCNN(image=(128, 192), rois=16, mask_rois=8, frozen_stages=count),
            ts.Plan(mesh={"data": 4}, global_batch=8, optimizer="momentum"),
            POD,
        )
        for count in (0, 1)
    )
    stem = 7 * 7 * 3 * 64 + 64 * 64 + 3 * 9 * 64**2 + 3 * 64 * 256 + 2 * 256 * 64 + 64 * 256
    assert _state(whole) - _state(frozen) == 4 * stem
    assert frozen.flops.model < whole.flops.model


def test_a_stride_in_the_first_convolution_leaves_less_for_it() -> None:
    """A quarter of the positions for the first convolution of three blocks: ResNet v1."""
    late, early = (
        ResNet.published("resnet-50", stride_in_1x1=where).graph(batch=1).model_flops()
        for where in (False, True)
    )
    less = sum(
        2 * 3 * (side // 2) ** 2 * 2 * n * n for side, n in ((56, 128), (28, 256), (14, 512))
    )
    assert late - early == less


def test_unet3d_has_the_parameters_of_its_filters() -> None:
    filters = (32, 64, 128, 256, 320, 320)
    ins = (1, *filters[:-1])
    down = sum(27 * (i * o + o * o) + 4 * o for i, o in zip(ins, filters, strict=True))
    pairs = list(zip(filters[1:], filters[:-1], strict=True))
    up = sum(8 * i * o + o + 27 * (2 * o * o + o * o) + 4 * o for i, o in pairs)
    assert UNet3d().parameter_count == down + up + 32 * 3 + 3


def test_a_resnet_has_the_flops_of_its_table() -> None:
    """4.089 billion multiplications and additions of an image of 224 x 224, version 1.5."""
    assert ResNet.published("resnet-50").graph(batch=1).model_flops() == 8_178_368_512
    folded = ResNet.published("resnet-50", space_to_depth=True)
    more = 2 * 112 * 112 * 64 * (4 * 4 * 12 - 7 * 7 * 3)
    assert folded.graph(batch=1).model_flops() == 8_178_368_512 + more
    assert folded.parameter_count == 25_557_032 + 64 * (4 * 4 * 12 - 7 * 7 * 3)


def test_ssd_has_8732_boxes() -> None:
    sides = (38, 19, 10, 5, 3, 1)
    assert sum(n * s * s for n, s in zip(SSD_BOXES, sides, strict=True)) == 8732
    sizes = SSD().graph(batch=1).sizes
    for side in sides[:-1]:
        assert side in sizes.values()
    assert sizes["default_boxes"] == 8732


@pytest.mark.parametrize("joined", [True, False])
def test_the_hard_negatives_of_ssd_are_searched_over_all_boxes_of_an_image(joined: bool) -> None:
    """One pass for each bit of a number, on losses that all devices of an image have whole."""
    ops = SSD(joins_levels=joined).graph(batch=1).ops
    rounds = [op for op in ops if "limit" in op.name]
    assert len(rounds) == 31
    assert {op.inputs[0].dims for op in rounds} == {("batch", "default_boxes")}
    plan = ts.Plan(mesh={"spatial": 4}, global_batch=4, rules={"act_height": "spatial"})
    program = ts.simulate(SSD(joins_levels=joined), plan, POD).program
    names = [op.name for op, _ in walk_ops(program.body) if not isinstance(op, Compute)]
    assert not any("limit" in name for name in names)


@pytest.mark.parametrize("model", sample(SMALL, 3), ids=lambda model: model.name)
def test_they_run_data_parallel_fsdp_and_tensor_parallel(model: Architecture) -> None:
    flops = model.graph(batch=8).model_flops()
    whole = None
    for mesh in ({"data": 4}, {"fsdp": 4}, {"data": 2, "fsdp": 2}):
        result = ts.simulate(model, ts.Plan(mesh=mesh, global_batch=8), POD)
        assert result.step_time_s > 0
        whole = whole or result.flops.model
        assert result.flops.model == whole
    assert whole is not None
    assert 2 * flops < whole <= 3 * flops


def test_each_flop_of_the_model_is_done_once_or_is_padding() -> None:
    """Eight images a device: fewer are cut, and padded (`cut-images`)."""
    result = ts.simulate(SMALL_RESNET, ts.Plan(mesh={"data": 4}, global_batch=32), POD)
    assert (result.flops.recompute, result.flops.redundant, result.flops.padding) == (0, 0, 0)


def test_published_changes_and_unknown_names() -> None:
    assert ResNet.published("resnet-50", classes=10).classes == 10
    with pytest.raises(
        ModelError, match=r"no ResNet 'resnet-5' is known; of resnet there are resnet-101"
    ):
        ResNet.published("resnet-5")
    with pytest.raises(ModelError, match="no DiffusionUNet 'sd' is known"):
        DiffusionUNet.published("sd")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ResNet(norm="bach"), "norm is 'bach'; did you mean 'batch'"),
        (lambda: ResNet(blocks=(1, 1)), "2 stages have 4 strides; write one stride"),
        (lambda: ResNet(image=225, space_to_depth=True), "cannot fold; write even numbers"),
        (lambda: UNet3d(patch=100), "cannot be halved 5 times; write a multiple of 32"),
        (lambda: DiffusionUNet(heads=8), "give either heads or head_dim"),
        (lambda: UNet3d(patch=16), "unet3d: patch is 16, which cannot be halved 5 times"),
        (lambda: DiffusionUNet(heads=-1, head_dim=0), "heads is -1; write 0 or more"),
        (lambda: DiffusionUNet(latent=60), "cannot be halved 3 times; write a multiple of 8"),
        (lambda: SSD(image=200), "write at least 264"),
        (lambda: MaskRCNN(image=(800, 1333)), r"write multiples of 64, such as \(832, 1344\)"),
        (lambda: MaskRCNN(roi_align="gathers"), "roi_align is 'gathers'; write one of gather"),
        (lambda: ResNet(frozen_stages=5), "frozen_stages is 5, but the network has 4 stages"),
        (lambda: ResNet(bottleneck=False, stride_in_1x1=True), "stride_in_1x1 is for bottlenecks"),
        (lambda: MetNet2(context=502), "write a multiple of 4"),
    ],
)
def test_bad_input_is_one_sentence(make: object, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        make()  # type: ignore[operator]


def test_lars_keeps_one_momentum_and_reads_each_weight_for_its_norm() -> None:
    plans = {
        name: ts.Plan(mesh={"data": 4}, global_batch=8, optimizer=name)
        for name in ("sgd", "momentum", "lars", "adam")
    }
    results = {name: ts.simulate(SMALL_RESNET, plan, POD) for name, plan in plans.items()}
    state = {name: _state(result) for name, result in results.items()}
    assert state["sgd"] == 0
    assert state["momentum"] == state["lars"] == 4 * SMALL_RESNET.parameter_count
    assert state["adam"] == 2 * state["lars"]
    assert results["momentum"].step_time_s < results["lars"].step_time_s


def _state(result: ts.PlanResult) -> float:
    return sum(alloc.bytes for alloc in result.program.resident if "moments" in alloc.tensor)


def test_flops_of_one_block_by_hand() -> None:
    """A stem of 7 x 7 taps at 16 x 16, two convolutions at 8 x 8 after the pool, the head."""
    net = ResNet(name="one", blocks=(1,), strides=(1,), bottleneck=False, image=32)
    sides = 16 * 16 * 49 * 3 * 64 + 2 * prod((8, 8, 9, 64, 64)) + 64 * 1000
    assert Fraction(net.graph(batch=1).model_flops()) == 2 * sides
