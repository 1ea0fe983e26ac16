"""The designed sample of systems: models of text, speech and images, sharded as their papers do.

A twin is a row of `SYSTEMS`; its number is 100 times the place of its system, plus its own place
there, so that rows and systems are added at the end without moving any other.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sample import Twin

from tpusim.hardware import parse_slice

PER_SYSTEM = 100
"""The most twins of a system."""

_ADAFACTOR = {"optimizer": "adafactor"}
_MOMENTUM = {"optimizer": "momentum"}
_EXPERTS = {"rules": {"embed": []}, "capacity_factor": 1.25, "seq_len": 512}
_HEIGHT = {"rules": {"act_height": "spatial"}}
_AREA = {"rules": {"act_height": "rows", "act_width": "columns"}}
_TWO_DIMENSIONS = {"rules": {"act_embed": "tensor"}}
_IMAGE_TOWER_WHOLE = {
    "rules": {"image.heads": [], "image.act_heads": [], "image.mlp": [], "image.act_mlp": []}
}
_TRANSLATION = {"seq_len": 30, "remat": "none"}
_UNSCANNED = {"seq_len": 512, "remat": "none", "scan_layers": False}
_TOKENS = {"seq_len": 1024, **_TWO_DIMENSIONS}
_SIXTEEN = {"experts": 16, "experts_per_token": 1, "expert_every": 2}
_DECODER = {
    "name": "decoder", "layers": 4, "embed": 1024, "mlp": 4096, "vocab": 32000, "gated": False,
    "activation": "gelu",
}  # fmt: skip
_HALF = {"embed": 4096, "mlp": 16384, "heads": 32}
_GROUPS = {**_EXPERTS, **_UNSCANNED, **_ADAFACTOR}


@dataclass(frozen=True)
class System:
    """A system and its twins.

    model: the section [model] of a run file.
    twins: slice, mesh, examples of a step, and further keys of the plan and of the model.
    """

    model: Mapping[str, Any]
    twins: tuple[tuple[str, Mapping[str, int], int, Mapping[str, Any], Mapping[str, Any]], ...]


SYSTEMS: Mapping[str, System] = {
    "encoder-decoder": System(
        {"name": "t5-base", "layers": 4, "target_len": 128},
        (
            ("v4:2x2x2", {"fsdp": 8}, 128, {"seq_len": 512}, {}),
            ("v5e:2x4", {"fsdp": 2, "tensor": 4}, 64, {"seq_len": 512}, {}),
            ("v3:2x2", {"data": 4, "tensor": 2}, 64, {"seq_len": 512, **_ADAFACTOR}, {}),
            ("v6e:4x4", {"data": 16}, 256, {"seq_len": 512}, {}),
            ("v5p:2x2x4", {"fsdp": 8, "tensor": 2}, 256, {"seq_len": 512, **_TWO_DIMENSIONS}, {}),
        ),
    ),
    "encoder-decoder with experts": System(
        {"name": "switch-base", "layers": 4, "target_len": 128, "moe": {"experts": 16}},
        (
            ("v3:2x2", {"expert": 8}, 64, {**_EXPERTS, **_ADAFACTOR}, {}),
            ("v5e:4x4", {"expert": 16}, 256, _EXPERTS, {}),
            ("v4:2x2x4", {"data": 2, "expert": 8}, 256, _EXPERTS, {}),
            ("v6e:2x4", {"expert": 4, "tensor": 2}, 128, _EXPERTS, {}),
            ("v5p:2x2x2", {"expert": 8}, 128, _EXPERTS, {"moe": {"experts_per_token": 2}}),
        ),
    ),
    "Conformer": System(
        {"name": "conformer-xl", "layers": 4, "frames": 512},
        (
            ("v4:2x2x2", {"fsdp": 4, "tensor": 2}, 64, _TWO_DIMENSIONS, {}),
            ("v3:2x2", {"data": 8}, 64, _ADAFACTOR, {}),
            ("v5e:4x4", {"fsdp": 16}, 128, {}, {}),
            ("v6e:2x4", {"fsdp": 4, "tensor": 2}, 64, {}, {}),
            ("v5p:2x2x2", {"data": 4, "tensor": 2}, 64, {}, {"kernel": 32}),
        ),
    ),
    "vision transformer": System(
        {"name": "vit-b/16", "layers": 4},
        (
            ("v5e:2x4", {"data": 8}, 512, {}, {}),
            ("v4:2x2x2", {"fsdp": 4, "tensor": 2}, 512, {}, {}),
            ("v6e:4x4", {"fsdp": 16}, 1024, {}, {}),
            ("v3:2x2", {"data": 8}, 256, {"remat": "none"}, {"scanned": False, "pool": "mean"}),
            ("v5p:2x2x4", {"fsdp": 4, "tensor": 4}, 512, _TWO_DIMENSIONS, {"pool": "probe"}),
        ),
    ),
    "two towers": System(
        {"name": "siglip-b/16", "image": {"layers": 4}, "text": {"layers": 4}},
        (
            ("v4:2x2x2", {"fsdp": 4, "tensor": 2}, 512, _IMAGE_TOWER_WHOLE, {}),
            ("v5e:4x4", {"data": 16}, 1024, {}, {}),
            ("v6e:2x4", {"fsdp": 8}, 512, {}, {}),
            ("v5p:2x2x2", {"fsdp": 4, "tensor": 2}, 512, {}, {"frozen": "image"}),
            ("v3:2x2", {"data": 8}, 256, {}, {"loss": "softmax"}),
        ),
    ),
    "3-D U-Net": System(
        {"architecture": "unet3d", "patch": 64, "filters": (32, 64, 128, 256)},
        (
            ("v4:2x2x2", {"data": 8}, 64, _MOMENTUM, {}),
            ("v5e:2x4", {"data": 8}, 64, _MOMENTUM, {}),
            ("v4:2x2x2", {"data": 4, "spatial": 2}, 4, {**_MOMENTUM, **_HEIGHT}, {}),
            ("v3:2x2", {"data": 4, "spatial": 2}, 32, {**_MOMENTUM, **_HEIGHT}, {}),
            ("v5p:2x2x2", {"data": 8}, 8, _MOMENTUM, {}),
            ("v6e:2x4", {"data": 2, "spatial": 4}, 16, {**_MOMENTUM, **_HEIGHT}, {}),
        ),
    ),
    "diffusion U-Net": System(
        {
            "name": "stable-diffusion-v2-base", "channels": (320, 640), "blocks": 1,
            "attention_levels": 1,
        },
        (
            ("v6e:2x4", {"data": 8}, 64, {}, {}),
            ("v5p:2x2x2", {"data": 8}, 128, {}, {}),
            ("v4:2x2x2", {"fsdp": 8}, 64, {}, {}),
            ("v5e:2x4", {"data": 4, "spatial": 2}, 32, _HEIGHT, {}),
            ("v6e:2x4", {"data": 8}, 16, {}, {}),
        ),
    ),
    "ResNet": System(
        {"name": "resnet-50", "blocks": (1, 1, 1, 1)},
        (
            ("v4:2x2x2", {"data": 8}, 512, _MOMENTUM, {}),
            ("v5e:2x4", {"data": 8}, 512, _MOMENTUM, {}),
            ("v3:2x2", {"data": 8}, 512, _MOMENTUM, {}),
            ("v5p:2x2x2", {"data": 4, "spatial": 2}, 256, {**_MOMENTUM, **_HEIGHT}, {}),
            ("v6e:2x4", {"data": 8}, 1024, {"optimizer": "lars"}, {"space_to_depth": True}),
            ("v6e:2x4", {"data": 2, "spatial": 4}, 64, {**_MOMENTUM, **_HEIGHT}, {}),
        ),
    ),
    "LSTM (GNMT)": System(
        {"architecture": "gnmt", "layers": 2, "decoder_layers": 2, "weights_after": False},
        (
            ("v4:2x2x2", {"data": 8}, 2048, _TRANSLATION, {}),
            ("v5e:2x4", {"data": 8}, 1024, _TRANSLATION, {}),
            ("v3:2x2", {"data": 4, "tensor": 2}, 512, _TRANSLATION, {}),
            ("v6e:2x4", {"fsdp": 8}, 1024, _TRANSLATION, {}),
            ("v5p:2x2x2", {"data": 8}, 1024, _TRANSLATION, {"layers": 4, "decoder_layers": 4}),
        ),
    ),
    "MLP-Mixer": System(
        {"name": "mixer-b/16", "layers": 4},
        (
            ("v4:2x2x2", {"data": 8}, 512, {}, {}),
            ("v5e:2x4", {"fsdp": 4, "tensor": 2}, 256, {}, {}),
            ("v6e:4x4", {"fsdp": 16}, 1024, {}, {}),
            ("v5p:2x2x2", {"data": 4, "tensor": 2}, 512, {}, {}),
            ("v3:2x2", {"data": 8}, 256, {}, {}),
        ),
    ),
    "SSD": System(
        {"architecture": "ssd"},
        (
            ("v4:2x2x2", {"data": 8}, 128, _MOMENTUM, {}),
            ("v3:2x2", {"data": 8}, 128, _MOMENTUM, {}),
            ("v5e:2x4", {"data": 8}, 128, _MOMENTUM, {}),
            ("v6e:2x4", {"data": 8}, 128, _MOMENTUM, {"space_to_depth": True}),
        ),
    ),
    "Mask R-CNN": System(
        {"architecture": "mask-rcnn", "image": (256, 256), "rois": 64, "mask_rois": 16},
        (
            ("v4:2x2x2", {"data": 8}, 64, _MOMENTUM, {}),
            ("v5e:2x4", {"data": 8}, 64, _MOMENTUM, {}),
            ("v3:2x2", {"data": 4, "spatial": 2}, 32, {**_MOMENTUM, **_HEIGHT}, {}),
        ),
    ),
    "MetNet-2": System(
        {
            "architecture": "metnet-2", "context": 64, "target": 64, "slices": 2, "stacks": 1,
            "dilations": (1, 2, 4), "in_channels": 64, "up_channels": 256, "up_blocks": 2,
            "head": 1024,
        },
        (
            ("v3:2x2", {"data": 2, "rows": 2, "columns": 2}, 16, _AREA, {}),
            ("v4:2x2x2", {"data": 2, "rows": 2, "columns": 2}, 16, _AREA, {}),
            ("v5e:2x4", {"data": 8}, 64, {}, {}),
            ("v6e:2x4", {"rows": 4, "columns": 2}, 8, _AREA, {}),
        ),
    ),
    "text without a scan": System(
        {"name": "t5-base", "layers": 4, "target_len": 128},
        (
            ("v3:2x2", {"data": 8}, 64, _UNSCANNED, {}),
            ("v3:2x2", {"data": 8}, 64, {**_UNSCANNED, **_ADAFACTOR}, {}),
            ("v3:2x2", {"data": 8}, 64, {"seq_len": 512, **_ADAFACTOR}, {}),
            ("v4:2x2x2", {"data": 8}, 64, {**_UNSCANNED, **_ADAFACTOR}, {}),
            ("v4:2x2x2", {"fsdp": 8}, 64, {"seq_len": 512, **_ADAFACTOR}, {}),
            ("v5e:2x4", {"data": 8}, 64, {**_UNSCANNED, **_ADAFACTOR}, {}),
            ("v3:2x2", {"expert": 8}, 64, {**_GROUPS, "expert_group": 8}, {"moe": _SIXTEEN}),
            ("v4:2x2x2", {"expert": 8}, 64, {**_GROUPS, "expert_group": 4}, {"moe": _SIXTEEN}),
            ("v3:2x2", {"data": 8}, 64, {**_UNSCANNED, "weight_update_axes": ["data"]}, {}),
        ),
    ),
    "language model without a scan": System(
        {**_DECODER, "heads": 8, "attention": "dot"},
        (
            ("v3:2x2", {"data": 8}, 64, _UNSCANNED, {}),
            ("v4:2x2x2", {"data": 8}, 64, _UNSCANNED, {}),
            ("v3:2x2", {"data": 8}, 128, {**_UNSCANNED, "seq_len": 256}, {"heads": 16}),
            ("v3:2x2", {"data": 8}, 64, _UNSCANNED, {"gated": True, "activation": "silu"}),
            ("v4:2x2x2", {"data": 8}, 64, _UNSCANNED, {"gated": True, "activation": "silu"}),
        ),
    ),
    "language model in two dimensions": System(
        {**_DECODER, "embed": 8192, "mlp": 32768, "heads": 64},
        (
            ("v3:8x8", {"fsdp": 16, "tensor": 8}, 64, _TOKENS, {}),
            ("v2:8x8", {"fsdp": 16, "tensor": 8}, 64, _TOKENS, _HALF),
            ("v3:8x8", {"fsdp": 8, "tensor": 16}, 64, _TOKENS, {}),
            ("v3:16x16", {"fsdp": 32, "tensor": 16}, 128, _TOKENS, {}),
        ),
    ),
}  # fmt: skip
"""Systems at sizes that compile in under a minute: few layers, blocks, levels or regions. Height
and width are sharded as GSPMD's paper and MLPerf's submissions do it (arXiv:2105.04663, section 5;
arXiv:2011.03641), experts as GShard's, activations by `embed` as BigSSL's, the towers by rules of
their own. Most have eight examples or more on a device, and a few have less."""


def numbers() -> Iterator[int]:
    """Return the numbers of all twins, the first of each system before the second."""
    return numbers_of(SYSTEMS)


def draw(number: int) -> Twin:
    """Return twin `number`."""
    return drawn(SYSTEMS, number)


def numbers_of(known: Mapping[str, System]) -> Iterator[int]:
    """Return the numbers of all twins of a designed sample."""
    places = [
        (place, PER_SYSTEM * index + place)
        for index, system in enumerate(known.values())
        for place in range(len(system.twins))
    ]
    return iter([number for _, number in sorted(places)])


def drawn(known: Mapping[str, System], number: int) -> Twin:
    """Return a twin of a designed sample."""
    index, place = divmod(number, PER_SYSTEM)
    name, system = list(known.items())[index]
    pod, mesh, batch, plan, changes = system.twins[place]
    model = {**system.model, **changes}
    if "moe" in changes:
        model["moe"] = {**system.model.get("moe", {}), **changes["moe"]}
    given = {"mesh": dict(mesh), "global_batch": batch, **plan}
    return Twin(number, parse_slice(pod), model, given, "", name)
