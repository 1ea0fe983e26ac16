"""Nets of images beside what the TPU compiler makes of them."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from extent import sample, thorough

import tpusim as ts
from tpusim.compiler_check import check
from tpusim.models import SSD, Architecture, DiffusionUNet, MaskRCNN, ResNet

pytestmark = [
    pytest.mark.xla,
    pytest.mark.skipif(
        find_spec("libtpu") is None or find_spec("optax") is None,
        reason="needs pip install 'tpusim[xla]'",
    ),
]

RESNET = ResNet(name="resnet", blocks=(1, 1, 1, 1))
DIFFUSION = DiffusionUNet(name="diffusion", channels=(320, 640), blocks=1, attention_levels=1)


@pytest.mark.parametrize(
    ("model", "batch", "slice_", "flops", "step"),
    sample(
        [
            (RESNET, 512, "v4:2x2x1", 0.02, 0.1),
            (RESNET, 512, "v5e:2x2", 0.02, 0.2),
            (DIFFUSION, 16, "v5p:2x2x1", 0.1, 0.2),
        ],
        3,
    ),
)
def test_a_plan_does_the_work_of_its_program(
    model: Architecture,
    batch: int,
    slice_: str,
    flops: float,
    step: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The compiler leaves out taps on padding, so a plan has a few more FLOPs.

    A small batch is filled up with rows of zeros, which are FLOPs of the program alone.
    """
    monkeypatch.setenv("TPUSIM_CACHE", str(tmp_path / "cache"))
    chip, _, shape = slice_.partition(":")
    plan = ts.Plan(mesh={"data": 4}, global_batch=batch, optimizer="momentum")
    found = check(model, plan, ts.Slice(chip, shape))
    counted = (found.plan.flops.total, found.program.flops.total)
    assert counted[0] == pytest.approx(counted[1], rel=flops)
    assert found.plan.step_time_s == pytest.approx(found.program.step_time_s, rel=step)
    assert found.comparison.same_mode_share > 0.95


REGIONS = {"act_rois": "spatial", "act_mask_rois": "spatial", "act_mask_rois_height": "spatial"}


@pytest.mark.thorough
@pytest.mark.parametrize("slice_", sample(["v3:2x2", "v4:2x2x2"], 2))
def test_regions_are_divided_over_the_devices_of_an_image(
    slice_: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Features are gathered, and regions exchanged for rows of their cells, as MLPerf's v0.7 does.

    On v3 each round of suppression passes through HBM.
    """
    monkeypatch.setenv("TPUSIM_CACHE", str(tmp_path / "cache"))
    chip, _, shape = slice_.partition(":")
    model = MaskRCNN(image=(256, 256), rois=64, mask_rois=16, roi_align="matmuls")
    plan = ts.Plan(
        mesh={"data": 2, "spatial": 4},
        global_batch=32,
        remat="none",
        optimizer="momentum",
        rules={"act_height": "spatial", **REGIONS},
    )
    found = check(model, plan, ts.Slice(chip, shape))
    counted = (found.plan.flops.total, found.program.flops.total)
    assert counted[0] == pytest.approx(counted[1], rel=0.01)
    assert found.plan.step_time_s == pytest.approx(found.program.step_time_s, rel=0.1)
    assert found.plan.hbm_peak_bytes == pytest.approx(found.program.hbm_peak_bytes, rel=0.15)


@pytest.mark.thorough
@pytest.mark.parametrize("slice_", ["v3:2x2", thorough("v4:2x2x2")])
@pytest.mark.parametrize("images", [4, thorough(32)])
def test_the_loss_of_default_boxes_takes_what_its_program_takes(
    slice_: str, images: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits are copied to have classes in the lanes, turned and joined, in the compute dtype.

    Of four images the program holds more than the plan, for a reason that is not known: 81 MB of
    498 on v3 and 167 of 707 on v4.
    """
    monkeypatch.setenv("TPUSIM_CACHE", str(tmp_path / "cache"))
    chip, _, shape = slice_.partition(":")
    plan = ts.Plan(mesh={"data": 8}, global_batch=8 * images, remat="none", optimizer="momentum")
    found = check(SSD(), plan, ts.Slice(chip, shape))
    counted = (found.plan.flops.total, found.program.flops.total)
    assert counted[0] == pytest.approx(counted[1], rel=0.01)
    assert found.plan.step_time_s == pytest.approx(found.program.step_time_s, rel=0.05)
    held = (found.plan.hbm_peak_bytes, found.program.hbm_peak_bytes)
    assert held[0] == pytest.approx(held[1], rel=0.15 if images == 32 else 0.25)
