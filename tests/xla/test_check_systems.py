"""Systems of text, images and speech beside what the TPU compiler makes of them, small."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from extent import sample

import tpusim as ts
from tpusim.compiler_check import check
from tpusim.models import (
    Architecture,
    Conformer,
    EncoderDecoder,
    MoE,
    TextTower,
    Transformer,
    TwoTowers,
    VisionTransformer,
)

pytestmark = [
    pytest.mark.xla,
    pytest.mark.skipif(
        find_spec("libtpu") is None or find_spec("optax") is None,
        reason="needs pip install 'tpusim[xla]'",
    ),
]

TRANSLATION = EncoderDecoder(
    name="translation", layers=4, embed=1024, mlp=4096, heads=16, vocab=32000, target_len=256
)
VIT = VisionTransformer.published("vit-b/16", layers=4)
TOWERS = TwoTowers(
    image=VisionTransformer.published("vit-b/16", layers=2, pool="mean"),
    text=TextTower(layers=2, embed=768, mlp=3072, heads=12, length=64),
)
SPEECH = Conformer.published("conformer-xl", layers=2, frames=512)


@pytest.mark.parametrize(
    ("model", "mesh", "batch", "slice_", "flops", "memory"),
    sample(
        [
            (TRANSLATION, {"fsdp": 8}, 128, "v4:2x2x2", 0.001, 0.30),
            (TRANSLATION, {"fsdp": 2, "tensor": 4}, 64, "v5e:2x4", 0.001, 0.26),
            (VIT, {"data": 8}, 512, "v5e:2x4", 0.001, 0.25),
            (VIT, {"fsdp": 4, "tensor": 2}, 512, "v4:2x2x2", 0.001, 0.27),
            (TOWERS, {"fsdp": 4, "tensor": 2}, 512, "v4:2x2x2", 0.001, 0.29),
            (SPEECH, {"data": 8}, 64, "v4:2x2x2", 0.015, 0.42),
        ],
        6,
    ),
)
def test_a_plan_does_the_work_of_its_program(
    model: Architecture,
    mesh: dict[str, int],
    batch: int,
    slice_: str,
    flops: float,
    memory: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The step is within a tenth, and FLOPs are equal but for taps on padding.

    The ring of a tied head over two devices is 12 % too slow beside `tensor` on v5e.

    HBM is off by up to 42 % in programs as small as these: what of two or four layers is alive at
    the peak depends on the order of single operations.
    """
    monkeypatch.setenv("TPUSIM_CACHE", str(tmp_path / "cache"))
    chip, _, shape = slice_.partition(":")
    seq_len = 256 if model.reads_text else 0
    plan = ts.Plan(mesh=mesh, global_batch=batch, seq_len=seq_len, optimizer="adafactor")
    found = check(model, plan, ts.Slice(chip, shape)).comparison
    assert found.plan_flops == pytest.approx(found.program_flops, rel=flops)
    tied_ring = (model, slice_) == (TRANSLATION, "v5e:2x4")
    within = 0.125 if tied_ring else 0.1
    assert found.plan_step_s == pytest.approx(found.program_step_s, rel=within)
    assert found.plan_hbm_bytes == pytest.approx(found.program_hbm_bytes, rel=memory)
    assert found.same_mode_share > 0.9


T5 = EncoderDecoder.published("t5-base", layers=4, target_len=128)
SWITCH = EncoderDecoder.published(
    "switch-base",
    layers=4,
    target_len=128,
    moe=MoE(experts=16, experts_per_token=1, expert_every=2),
)
DECODER = Transformer(
    layers=4, embed=1024, mlp=4096, heads=8, vocab=32000, gated=False, activation="gelu",
    attention="dot",
)  # fmt: skip
GROUPS = {"rules": {"embed": []}, "capacity_factor": 1.25, "expert_group": 8}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("model", "slice_", "keys"),
    sample(
        [
            (T5, "v3:2x2", {"mesh": {"data": 8}, "optimizer": "adafactor"}),
            (T5, "v3:2x2", {"mesh": {"data": 8}}),
            (T5, "v3:2x2", {"mesh": {"data": 8}, "optimizer": "adafactor", "scan_layers": True}),
            (T5, "v4:2x2x2", {"mesh": {"fsdp": 8}, "optimizer": "adafactor", "scan_layers": True}),
            (SWITCH, "v3:2x2", {"mesh": {"expert": 8}, "optimizer": "adafactor", **GROUPS}),
            (DECODER, "v3:2x2", {"mesh": {"data": 8}}),
            (DECODER, "v4:2x2x2", {"mesh": {"data": 8}}),
        ],
        7,
    ),
)
def test_layers_without_a_scan_and_adafactor(
    model: Architecture,
    slice_: str,
    keys: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a checkpoint; with a scan there is one. The step is within 10 %, HBM within 15."""
    monkeypatch.setenv("TPUSIM_CACHE", str(tmp_path / "cache"))
    chip, _, shape = slice_.partition(":")
    given = {"scan_layers": False, **keys}
    given["remat"] = "full" if given["scan_layers"] else "none"
    plan = ts.Plan(seq_len=512, global_batch=64, **given)
    found = check(model, plan, ts.Slice(chip, shape)).comparison
    assert found.plan_flops == pytest.approx(found.program_flops, rel=0.001)
    assert found.plan_step_s == pytest.approx(found.program_step_s, rel=0.1)
    assert found.plan_hbm_bytes == pytest.approx(found.program_hbm_bytes, rel=0.15)


@pytest.mark.parametrize("chip", sample(["v2", "v3"], 2))
def test_v2_and_v3_move_activations_without_rings(
    chip: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a dimension of the torus, where plans had rings: the step is within 3 %."""
    monkeypatch.setenv("TPUSIM_CACHE", str(tmp_path / "cache"))
    model = Transformer(
        layers=4, embed=4096, mlp=16384, heads=32, vocab=32000, gated=False, activation="gelu"
    )
    plan = ts.Plan(
        mesh={"fsdp": 16, "tensor": 8}, rules={"act_embed": "tensor"}, seq_len=1024,
        global_batch=64, placement="fsdp=16 on x,die · tensor=8 on y",
    )  # fmt: skip
    found = check(model, plan, ts.Slice(chip, "8x8")).comparison
    assert found.plan_step_s == pytest.approx(found.program_step_s, rel=0.03)
    assert found.same_mode_share > 0.95
