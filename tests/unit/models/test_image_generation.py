"""Models that make images in steps: released numbers of weights, and FLOPs in closed form."""

from dataclasses import replace

import pytest

import tpusim as ts
from tpusim.base import ModelError
from tpusim.graph import Scan
from tpusim.models import (
    Architecture,
    DiffusionUNet,
    ImageDecoder,
    SingleStreamTransformer,
    load,
    names,
)
from tpusim.serving.engines.served_models import served_name

PARAMETERS = {
    "stable-diffusion-xl-base-1.0": 2_567_463_684,
    "z-image-turbo": 6_154_908_736,
    "sdxl-vae": 49_490_199,
    "flux-vae": 49_545_475,
}
"""Of the released checkpoints; decoders with the matrix before them, without their encoders."""

STREAM = SingleStreamTransformer(
    layers=3, refiners=2, embed=64, mlp=96, heads=4, latent=16, latent_channels=4, text=32,
    text_embed=48, vector=24, time_hidden=40, attention="dot",
)  # fmt: skip
UNET = DiffusionUNet(
    channels=(64, 128), blocks=1, attention_levels=2, latent=16, text=8, text_embed=48
)


@pytest.mark.parametrize(("name", "count"), PARAMETERS.items())
def test_weights_are_those_released(name: str, count: int) -> None:
    assert load(name).parameter_count == count


def test_every_published_model_of_a_new_kind_is_counted() -> None:
    assert {*names(ImageDecoder), *names(SingleStreamTransformer)} <= set(PARAMETERS)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("stabilityai/stable-diffusion-xl-base-1.0", "stable-diffusion-xl-base-1.0"),
        ("SDXL", "stable-diffusion-xl-base-1.0"),
        ("Tongyi-MAI/Z-Image-Turbo", "z-image-turbo"),
    ],
)
def test_names_of_hugging_face_find_them(model: str, name: str) -> None:
    assert served_name(model) == name


def attention_weights(width: int, text: int) -> int:
    """Return the matrices of a layer of a U-Net: four of itself, those to the text, and an MLP."""
    return 4 * width**2 + 2 * width**2 + 2 * text * width + 3 * 4 * width**2


def test_a_further_layer_of_attention_has_its_own_weights_and_flops() -> None:
    """Two blocks of each level and the one between the ways have it; the latter reads the last."""
    more = replace(UNET, attention_layers=(1, 3))
    width, tokens, blocks = 128, 8 * 8, 2 * (1 + 1 + 1 + 1)
    vectors = 6 * width + 2 * width + 2 * 4 * width + width
    each = attention_weights(width, 48) + vectors
    assert more.parameter_count - UNET.parameter_count == blocks * each
    seen = tokens * (4 + 1 + 1) * width**2 + 8 * 2 * 48 * width + tokens * 12 * width**2
    scores = 2 * width * (tokens * tokens + tokens * 8)
    assert more.graph(batch=1).model_flops() - UNET.graph(batch=1).model_flops() == (
        blocks * 2 * (seen + scores)
    )


def test_levels_before_the_first_with_attention_have_none() -> None:
    later = replace(UNET, attention_from=1)
    assert [later.layers_of(level) for level in range(2)] == [0, 1]
    assert [load("stable-diffusion-xl-base-1.0").layers_of(level) for level in range(3)] == [
        0,
        2,
        10,
    ]
    width = 64
    vectors = 6 * width + 2 * width + 2 * 4 * width + width
    ends = 2 * (width**2 + width) + 2 * width
    each = attention_weights(width, 48) + vectors + ends
    assert UNET.parameter_count - later.parameter_count == 3 * each


def test_an_added_vector_has_the_embedding_of_a_time() -> None:
    wide = 4 * 64
    more = replace(UNET, added=96)
    assert more.parameter_count - UNET.parameter_count == 96 * wide + wide + wide**2 + wide
    flops = more.graph(batch=3).model_flops() - UNET.graph(batch=3).model_flops()
    assert flops == 3 * 2 * (96 * wide + wide**2)


@pytest.mark.parametrize("attention", ["dot", "flash"])
def test_flops_of_a_stream_are_those_of_weights_and_scores(attention: str) -> None:
    """Text and image pass two refiners each, and three layers together; modulations are rows."""
    model = replace(STREAM, attention=attention, flash_from=64)
    image, text, width, mlp, vector = 64, 32, 64, 96, 24
    layer = 4 * width**2 + 3 * width * mlp

    def passed(tokens: int) -> int:
        return tokens * layer + 2 * width * tokens**2

    rows = (2 + 3) * 4 * vector * width + vector * width
    time = 256 * 40 + 40 * vector
    ends = image * 16 * width * 2 + text * 48 * width
    total = 2 * (passed(image) + passed(text)) + 3 * passed(image + text) + rows + time + ends
    assert model.graph(batch=5).model_flops() == 5 * 2 * total


def test_a_stream_without_refiners_has_one_row_of_layers() -> None:
    graph = replace(STREAM, refiners=0).graph(batch=2)
    assert [op.trips for op in graph.ops if isinstance(op, Scan)] == [3]


def test_flops_of_a_decoder_are_those_of_its_taps() -> None:
    """Of latents of 8 x 8: two levels of one block each, and attention over 64 positions."""
    model = ImageDecoder(latent=8, latent_channels=4, channels=(32, 16), blocks=1)
    small, large = 8 * 8, 16 * 16
    middle = 4 * 9 * 32 * 32 + 4 * 32 * 32
    first = 4 * 4 + 9 * 4 * 32 + middle + 2 * 9 * 32 * 32
    second = 9 * 32 * 32 + 9 * 32 * 16 + 9 * 16 * 16 + 32 * 16 + 9 * 16 * 3
    total = small * first + large * second + 2 * small * small * 32
    assert model.graph(batch=3).model_flops() == 3 * 2 * total


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(STREAM, id="stream"),
        pytest.param(
            replace(UNET, attention_layers=(2,), added=8), id="unet", marks=pytest.mark.thorough
        ),
        pytest.param(ImageDecoder(latent=8, channels=(32, 16)), id="decoder"),
    ],
)
def test_flops_are_the_same_on_any_mesh(model: Architecture) -> None:
    found = {
        ts.simulate(model, ts.Plan(mesh=mesh, global_batch=8), "v4:2x2x1").flops.model
        for mesh in ({"data": 4}, {"fsdp": 4}, {"data": 2, "fsdp": 2})
    }
    assert len(found) == 1


def test_bad_models_say_what_to_write() -> None:
    with pytest.raises(ModelError, match="attention_layers has 2 numbers, for 3 levels"):
        DiffusionUNet(channels=(64, 64, 64), attention_layers=(1, 2))
    with pytest.raises(ModelError, match="latent is 15, which patch 2 does not divide"):
        replace(STREAM, latent=15)
    with pytest.raises(ModelError, match="blocks is 0; write 1 or more"):
        ImageDecoder(blocks=0)
