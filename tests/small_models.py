"""A small model of each architecture, with and without fused attention and experts."""

from typing import Any

from tpusim import models
from tpusim.models import Architecture

_WIDTHS = {"embed": 256, "mlp": 512, "heads": 4}
_TEXT = {**_WIDTHS, "layers": 4, "vocab": 1024}
_IMAGES = {**_WIDTHS, "image": 64, "classes": 128}


def small_metnet2(**changes: Any) -> models.MetNet2:
    """Return a MetNet-2 of few channels, on 64 x 64 positions."""
    sizes = {
        "context": 64, "target": 64, "hidden": 16, "slices": 2, "dilations": (1, 2), "stacks": 1,
        "in_channels": 16, "lstm": 16, "up_blocks": 1, "up_channels": 64, "head": 64,
        "lead_features": 64,
    }  # fmt: skip
    return models.MetNet2(**{**sizes, **changes})


SMALL_MODELS: tuple[Architecture, ...] = (
    models.Transformer(name="flash", kv_heads=2, **_TEXT),
    models.Transformer(name="dot", attention="dot", kind="encoder", **_TEXT),
    models.Transformer(name="moe", experts=4, experts_per_token=2, **_TEXT),
    models.Bert(name="bert", **_TEXT),
    models.EncoderDecoder(name="encoder-decoder", **{**_TEXT, "layers": 2}),
    models.EvolvedTransformer(name="evolved", decoder_blocks=2, embed=256, heads=4, vocab=1024),
    models.Gnmt(name="gnmt", layers=2, decoder_layers=2, units=256, vocab=1024),
    models.VisionTransformer(name="vit", layers=4, **_IMAGES),
    models.VisionTransformer(name="vit-unscanned", layers=4, scanned=False, **_IMAGES),
    models.MlpMixer(
        name="mixer", layers=4, embed=256, token_mlp=128, mlp=512, image=64, classes=128
    ),
    models.TwoTowers(
        name="towers",
        image=models.VisionTransformer(layers=2, **_IMAGES),
        text=models.TextTower(layers=2, vocab=1024, **_WIDTHS),
        shared=128,
    ),
    models.ContrastiveCaptioner(
        name="captioner",
        image=models.VisionTransformer(layers=2, **_IMAGES),
        text=models.CaptionDecoder(layers=2, cross_layers=2, vocab=1024, length=32, **_WIDTHS),
        queries=16,
    ),
    models.Conformer(name="conformer", layers=2, embed=256, heads=4, frames=160, codes=256),
    models.ResNet(name="resnet", blocks=(1, 1, 1, 1), image=64, classes=128),
    models.SSD(name="ssd"),
    models.MaskRCNN(name="mask-rcnn", image=(256, 256), rois=32, mask_rois=8),
    models.UNet3d(name="unet3d", patch=32, filters=(32, 64, 128)),
    models.DiffusionUNet(
        name="diffusion", latent=32, channels=(64, 128), blocks=1, attention_levels=1
    ),
    models.ImageDecoder(name="image-decoder", latent=16, channels=(128, 64), blocks=1),
    models.SingleStreamTransformer(
        name="single-stream", layers=2, refiners=1, latent=32, text=64, text_embed=256,
        time_hidden=256, **_WIDTHS,
    ),
    models.JointTransformer(
        name="joint", double_layers=2, single_layers=2, heads=4, head_dim=64, latent=32, text=64,
        text_embed=256, pooled=64,
    ),
    models.VideoTransformer(
        name="video", layers=2, frames=4, height=16, width=16, text=64, text_embed=256, **_WIDTHS
    ),
    models.MetNet2(
        name="metnet", context=64, in_channels=16, slices=2, hidden=64, dilations=(1, 2), stacks=1,
        target=64, up_channels=64, categories=64, lstm=64, up_blocks=1, head=64, leads=16,
        lead_features=64,
    ),
)  # fmt: skip
