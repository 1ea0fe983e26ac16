"""Contrastive captioners and video transformers: published counts, FLOPs in closed form, faults."""

from dataclasses import replace

import pytest

import tpusim as ts
from tpusim.base import ModelError
from tpusim.graph import Remat, training_step
from tpusim.models import (
    Architecture,
    CaptionDecoder,
    ContrastiveCaptioner,
    VideoTransformer,
    VisionTransformer,
    load,
)

D, F, H = 64, 96, 4
IMAGE = VisionTransformer(layers=2, embed=D, mlp=F, heads=H, patch=8, image=32, pool="mean")
TEXT = CaptionDecoder(layers=3, cross_layers=2, embed=D, mlp=F, heads=H, vocab=256, length=16)
CAPTIONER = ContrastiveCaptioner(image=IMAGE, text=TEXT, queries=8)
VIDEO = VideoTransformer(
    layers=3, embed=D, mlp=F, heads=H, frames=2, height=8, width=16, text=12, text_embed=48
)
SMALL: tuple[Architecture, ...] = (CAPTIONER, VIDEO)


@pytest.mark.parametrize(
    ("name", "millions", "poolers"),
    [("coca-base", 383, 2 * 4 * 768**2), ("coca-large", 787, 2 * 4 * 1024**2)],
)
def test_coca_has_its_published_parameters_without_poolers(
    name: str, millions: int, poolers: int
) -> None:
    """Table 1 of arXiv:2205.01917 adds the encoder of images to the decoder of text."""
    assert load(name).parameter_count - poolers == pytest.approx(millions * 1e6, rel=0.001)


@pytest.mark.parametrize(
    ("name", "count"), [("wan2.1-1.3b", 1_418_996_800), ("wan2.1-14b", 14_288_491_584)]
)
def test_wan_has_the_parameters_of_its_checkpoints(name: str, count: int) -> None:
    assert load(name).parameter_count == count


def layer(tokens: int, keys: int = 0, share: float = 1.0) -> float:
    """FLOPs of a layer's self-attention and MLP."""
    keys = keys or tokens
    return 2 * tokens * (4 * D**2 + 2 * D * F) + 4 * share * tokens * keys * D


def cross(tokens: int, seen: int) -> int:
    """FLOPs of attention to other tokens."""
    return 2 * tokens * 2 * D**2 + 2 * seen * 2 * D**2 + 4 * tokens * seen * D


def test_flops_of_a_captioner_are_those_of_its_parts() -> None:
    patches, batch = 16, 4
    encoder = 2 * patches * 3 * 8**2 * D + 2 * layer(patches)
    poolers = cross(8, patches) + cross(1, 8)
    alone = 3 * layer(16, share=0.5)
    both = 2 * (layer(16, share=0.5) + cross(16, 8))
    head = 2 * 16 * D * 256
    pairs = 2 * batch * batch * D
    found = CAPTIONER.graph(batch=batch).model_flops()
    assert found == batch * (encoder + poolers + alone + both + head) + pairs


def test_flops_of_a_video_transformer_are_those_of_its_parts() -> None:
    tokens, text = 2 * 4 * 8, 12
    ends = 2 * tokens * 2 * D * 16 * 4
    embedded = 2 * text * (48 * D + D**2) + 2 * (256 * D + D**2 + 6 * D**2)
    layers = 3 * (layer(tokens) + cross(tokens, text))
    assert VIDEO.tokens == tokens
    dot = replace(VIDEO, attention="dot")
    assert dot.graph(batch=1).model_flops() == ends + embedded + layers


def test_tokens_of_a_video_are_padded_for_the_kernel() -> None:
    assert load("wan2.1-14b").tokens == 75_600
    assert load("wan2.1-14b").graph(batch=1).sizes["patches"] == 75_648


@pytest.mark.parametrize("model", SMALL, ids=lambda model: type(model).__name__)
def test_the_backward_pass_makes_a_gradient_of_each_weight(model: Architecture) -> None:
    step = training_step(model.graph(batch=4), Remat("full"))
    assert {name for name, _ in step.gradients} == {p.tensor.name for p in step.parameters}


@pytest.mark.parametrize("model", SMALL, ids=lambda model: type(model).__name__)
@pytest.mark.parametrize("mesh", [{"data": 16}, {"fsdp": 4, "tensor": 4}], ids=str)
def test_plans_of_all_are_simulated(model: Architecture, mesh: dict[str, int]) -> None:
    result = ts.simulate(model, ts.Plan(mesh=mesh, global_batch=32), ts.Slice("v5e", "4x4"))
    assert result.step_time_s > 0
    assert result.fits


def test_the_image_encoder_has_no_pool_and_no_classifier() -> None:
    other = replace(IMAGE, pool="probe", classes=10, representation=True)
    assert replace(CAPTIONER, image=other).parameter_count == CAPTIONER.parameter_count


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: replace(CAPTIONER, text=replace(TEXT, embed=128)), "text.embed 128, but their"),
        (lambda: replace(TEXT, heads=7), "text.embed 64 does not divide into 7 heads"),
        (lambda: replace(CAPTIONER, queries=0), "queries is 0; it must be at least 1"),
        (lambda: replace(VIDEO, height=9), "height is 9, which patch 2 does not divide"),
        (lambda: replace(VIDEO, attention="none"), "attention is 'none'; write one of dot, flash"),
        (lambda: replace(VIDEO, heads=5), "embed 64 does not divide into 5 heads"),
    ],
)
def test_bad_input_is_one_sentence(make: object, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        make()  # type: ignore[operator]
