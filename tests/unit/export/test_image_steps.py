"""Steps of nets of images as JAX: what they compute has the shapes of the graph, and trains."""

from typing import Any

import pytest
from extent import sample
from small_models import small_metnet2

import tpusim as ts
from tpusim.base import PlanError
from tpusim.export import export_jax
from tpusim.models import (
    SSD,
    Architecture,
    CaptionDecoder,
    ContrastiveCaptioner,
    DiffusionUNet,
    ImageDecoder,
    MaskRCNN,
    ResNet,
    SingleStreamTransformer,
    UNet3d,
    VideoTransformer,
    VisionTransformer,
)

WIDTHS: dict[str, Any] = {"embed": 64, "mlp": 96, "heads": 4}

SMALL: tuple[Architecture, ...] = (
    ResNet(name="batch", blocks=(1, 1), strides=(1, 2), image=32, classes=10),
    ResNet(name="group", blocks=(1, 1), strides=(1, 2), image=32, norm="group", preactivation=True),
    UNet3d(name="volumes", patch=8, filters=(4, 8)),
    DiffusionUNet(
        name="diffusion", channels=(64, 128), blocks=1, attention_levels=1, latent=8, text_embed=32
    ),
    DiffusionUNet(
        name="layers",
        channels=(64, 128),
        blocks=1,
        attention_from=1,
        attention_layers=(1, 2),
        added=48,
        latent=8,
        text_embed=32,
    ),
    ImageDecoder(name="decoder", latent=8, channels=(64, 32), blocks=1),
    SingleStreamTransformer(
        name="stream",
        layers=2,
        refiners=1,
        latent=8,
        text=16,
        text_embed=48,
        vector=32,
        time_hidden=48,
        attention="dot",
        **WIDTHS,
    ),
    SSD(name="ssd"),
    SSD(name="levels", joins_levels=False),
    MaskRCNN(name="regions", image=(128, 192), rois=16, mask_rois=8),
    MaskRCNN(
        name="multiplied",
        image=(128, 192),
        rois=16,
        mask_rois=8,
        roi_align="matmuls",
        frozen_stages=1,
        stride_in_1x1=True,
    ),
    ContrastiveCaptioner(
        name="captioner",
        image=VisionTransformer(layers=2, patch=8, image=32, **WIDTHS),
        text=CaptionDecoder(layers=2, cross_layers=2, vocab=128, length=16, **WIDTHS),
        queries=8,
    ),
    VideoTransformer(
        name="video",
        layers=2,
        frames=2,
        height=8,
        width=8,
        text=16,
        text_embed=48,
        attention="dot",
        **WIDTHS,
    ),
    small_metnet2(name="rain", context=32),
)


def exported(model: Architecture, **keys: Any) -> str:
    plan = ts.Plan(mesh={"data": 1}, global_batch=2, optimizer="momentum", **keys)
    return export_jax(model, plan, ts.Slice("v5e", "1x1"))


@pytest.mark.parametrize("model", sample(SMALL, 16), ids=lambda model: model.name)
def test_an_exported_step_has_the_weights_of_the_model_and_a_loss(model: Architecture) -> None:
    jax = pytest.importorskip("jax")
    pytest.importorskip("optax")
    space: dict[str, Any] = {"__name__": "step"}
    exec(compile(exported(model), "step.py", "exec"), space)
    axes = (jax.sharding.AxisType.Auto,)
    with jax.set_mesh(jax.make_mesh((1,), ("data",), axis_types=axes)):
        state = jax.eval_shape(lambda: space["init"](jax.random.key(0)))
        batch = {name: jax.ShapeDtypeStruct(*given) for name, given in space["INPUTS"].items()}
        after, loss = jax.eval_shape(space["train_step"], state, batch)
    assert sum(weight.size for weight in jax.tree.leaves(state[0])) == model.parameter_count
    assert jax.tree.map(lambda leaf: leaf.shape, after) == jax.tree.map(lambda x: x.shape, state)
    assert loss.shape == ()


def test_inputs_are_named_and_microbatches_refused() -> None:
    source = exported(SMALL[0])
    assert '"image": ((BATCH, IN_HEIGHT, IN_WIDTH, N3_IN_CHANNELS,), jnp.bfloat16)' in source
    assert "def train_step(state: State, batch: dict[str, Array])" in source
    with pytest.raises(PlanError, match="a model of images in microbatches"):
        exported(SMALL[0], microbatches=2)


def test_an_input_is_whole_along_what_its_axes_do_not_divide() -> None:
    """Of 128 rows, levels 5 and 6 have 4 and 2: the latter are not cut in four."""
    model = MaskRCNN(name="cut", image=(128, 192), rois=16, mask_rois=8)
    plan = ts.Plan(mesh={"spatial": 4}, global_batch=2, rules={"act_height": "spatial"})
    source = export_jax(model, plan, ts.Slice("v4", "2x2x1"))
    assert '"rpn_score5_wanted": P(None, "spatial"),' in source
    assert '"rpn_score6_wanted": P(),' in source


def test_a_norm_of_one_device_is_refused_on_several() -> None:
    model = ResNet(name="own", blocks=(1,), strides=(1,), image=32, norm="device")
    plan = ts.Plan(mesh={"data": 4}, global_batch=4)
    with pytest.raises(PlanError, match="a norm of what one device has"):
        export_jax(model, plan, ts.Slice("v4", "2x2x1"))
