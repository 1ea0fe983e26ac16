"""Programs whose compile time is measured: small ones of many kinds, on six generations.

Each is a section [model], a section [plan] and a slice. Those of `FIT` choose the constants of
`tpusim.training.compile_time`, together with the older rows of `compile_times.csv`; those of
`HELD_OUT` judge them. None of them is in the samples of plan_vs_compiler.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tpusim import Plan, Slice
from tpusim.hardware import parse_slice
from tpusim.models import Architecture, Transformer
from tpusim.runfile.architectures import split_model

_DECODER = {
    "name": "decoder", "layers": 4, "embed": 1024, "mlp": 2816, "heads": 8, "head_dim": 128,
    "vocab": 32000,
}  # fmt: skip
_DOT = {**_DECODER, "attention": "dot"}
_FLASH = {**_DECODER, "attention": "flash"}
_ENCODER = {
    **_DOT, "name": "encoder", "kind": "encoder", "gated": False, "activation": "gelu",
    "mlp": 4096, "heads": 16, "head_dim": 64, "vocab": 30522,
}  # fmt: skip
_EXPERTS = {**_FLASH, "name": "experts", "experts": 8, "experts_per_token": 2, "mlp": 2048}
_SHORT = {"seq_len": 1024, "global_batch": 32}
_UNROLLED = {"scan_layers": False, "remat": "none"}
_MOMENTUM = {"optimizer": "momentum"}
_PIPELINE = {
    "schedule": "circular", "remat": "full", "microbatches": 8, "seq_len": 1024,
    "global_batch": 64,
}  # fmt: skip


@dataclass(frozen=True)
class Sampled:
    """A program to compile: its name, what it is a kind of, and how it is written."""

    name: str
    kind: str
    slice: str
    model: Mapping[str, Any]
    plan: Mapping[str, Any]

    def arguments(self) -> tuple[Architecture, Plan, Slice]:
        """Return the arguments of a simulation."""
        _, other = split_model({"model": dict(self.model)})
        model = other or Transformer(**self.model)
        return model, Plan(**self.plan), parse_slice(self.slice)


def _decoder(
    name: str, pod: str, mesh: Mapping[str, int], plan: Mapping[str, Any], **model: Any
) -> Sampled:
    given = {**_SHORT, "mesh": dict(mesh), **plan}
    base = _FLASH if model.pop("flash", True) else _DOT
    return Sampled(name, "decoder", pod, {**base, **model}, given)


def _other(
    label: str, what: str, pod: str, mesh: Mapping[str, int], plan: Mapping[str, Any], **model: Any
) -> Sampled:
    return Sampled(label, what, pod, model, {"mesh": dict(mesh), **plan})


FIT: tuple[Sampled, ...] = (
    _decoder("fit-tiny", "v5e:2x2", {"data": 4}, {}, layers=2, embed=512, heads=4, mlp=2048),
    _decoder("fit-unrolled-3", "v4:2x2x2", {"fsdp": 8}, _UNROLLED, layers=3),
    _decoder("fit-unrolled-8", "v5e:2x4", {"data": 8}, _UNROLLED, layers=8, flash=False),
    _decoder("fit-dot-v6e", "v6e:2x2", {"fsdp": 4}, {}, flash=False),
    _other("fit-encoder", "encoder", "v3:2x2", {"data": 8}, {**_SHORT, "seq_len": 512}, **_ENCODER),
    _other(
        "fit-resnet", "ResNet", "v5e:2x2", {"data": 4}, {"global_batch": 256, **_MOMENTUM},
        name="resnet-50", blocks=(1, 1, 1, 1),
    ),
)  # fmt: skip

HELD_OUT: tuple[Sampled, ...] = (
    _decoder("decoder-data", "v5e:2x4", {"data": 8}, {}, embed=768, heads=6, mlp=2048),
    _decoder("decoder-fsdp", "v4:2x2x2", {"fsdp": 8}, {}),
    _decoder("decoder-tensor", "v6e:2x2", {"fsdp": 2, "tensor": 2}, {}),
    _decoder("decoder-unrolled-2", "v5e:2x2", {"fsdp": 4}, _UNROLLED, layers=2, flash=False),
    _decoder("decoder-unrolled-6", "v5p:2x2x1", {"data": 4}, _UNROLLED, layers=6),
    _decoder("decoder-unrolled-12", "v4:2x2x1", {"data": 4}, _UNROLLED, layers=12, flash=False),
    _decoder("decoder-adafactor", "v3:2x2", {"fsdp": 8}, {"optimizer": "adafactor"}, flash=False),
    _decoder(
        "decoder-accumulated", "v5e:2x4", {"fsdp": 8}, {"microbatches": 4, "remat": "minimal"}
    ),
    _decoder("decoder-7x", "7x:2x2x1", {"fsdp": 4, "tensor": 2}, {}),
    _decoder(
        "decoder-one-chip", "v5e:1x1", {"data": 1}, {"global_batch": 4, "remat": "none"}, layers=2
    ),
    _decoder("decoder-deep", "v4:2x2x2", {"fsdp": 4, "tensor": 2}, {"remat": "full"}, layers=32),
    _other(
        "encoder-dot", "encoder", "v4:2x2x1", {"data": 4}, {**_SHORT, "seq_len": 512}, **_ENCODER
    ),
    _other(
        "encoder-unrolled", "encoder", "v3:2x2", {"data": 8},
        {**_SHORT, **_UNROLLED, "seq_len": 512}, **_ENCODER,
    ),
    _other(
        "experts-capacity", "experts", "v5e:2x4", {"expert": 8},
        {**_SHORT, "capacity_factor": 1.25}, **_EXPERTS,
    ),
    _other("experts-sorted", "experts", "v6e:2x4", {"fsdp": 2, "expert": 4}, _SHORT, **_EXPERTS),
    _other(
        "resnet-14", "ResNet", "v4:2x2x1", {"data": 4}, {"global_batch": 256, **_MOMENTUM},
        name="resnet-50", blocks=(1, 1, 1, 1), image=128,
    ),
    _other(
        "resnet-26", "ResNet", "v3:2x2", {"data": 8}, {"global_batch": 256, **_MOMENTUM},
        name="resnet-50", blocks=(2, 2, 2, 2),
    ),
    _other(
        "resnet-50", "ResNet", "v5e:2x4", {"data": 8}, {"global_batch": 512, **_MOMENTUM},
        name="resnet-50",
    ),
    _other(
        "pipeline-4", "pipeline", "v5e:2x4", {"stage": 4, "fsdp": 2}, _PIPELINE, **_FLASH
    ),
    _other(
        "pipeline-2", "pipeline", "v4:2x2x2", {"stage": 2, "fsdp": 4}, _PIPELINE,
        **{**_FLASH, "layers": 8},
    ),
    _other(
        "vit-s", "vision transformer", "v6e:2x2", {"data": 4}, {"global_batch": 256},
        name="vit-s/16", layers=6,
    ),
    _other(
        "vit-unrolled", "vision transformer", "v5p:2x2x1", {"fsdp": 4}, {"global_batch": 256},
        name="vit-s/16", layers=4, scanned=False,
    ),
    _other(
        "mixer", "MLP-Mixer", "v4:2x2x1", {"data": 4}, {"global_batch": 256},
        name="mixer-b/16", layers=3,
    ),
    _other(
        "conformer", "Conformer", "v5e:2x2", {"fsdp": 4}, {"global_batch": 32},
        name="conformer-xl", layers=2, frames=512,
    ),
    _other(
        "gnmt", "LSTM (GNMT)", "v4:2x2x1", {"data": 4},
        {"global_batch": 512, "seq_len": 30, "remat": "none"},
        architecture="gnmt", layers=2, decoder_layers=2, weights_after=False,
        shared_embedding=False,
    ),
    _other(
        "t5", "encoder-decoder", "v6e:2x2", {"fsdp": 4}, {"global_batch": 64, "seq_len": 512},
        name="t5-base", layers=2, target_len=128,
    ),
    _other(
        "t5-v3", "encoder-decoder", "v3:2x2", {"data": 8},
        {"global_batch": 64, "seq_len": 256, "optimizer": "adafactor"},
        name="t5-base", layers=3, target_len=64,
    ),
    _other(
        "two-towers", "two towers", "v5p:2x2x1", {"data": 4}, {"global_batch": 256},
        name="siglip-b/16", image={"layers": 2}, text={"layers": 2},
    ),
    _other(
        "unet3d", "3-D U-Net", "v4:2x2x1", {"data": 4}, {"global_batch": 32, **_MOMENTUM},
        architecture="unet3d", patch=64, filters=(32, 64, 128),
    ),
    _other(
        "ssd", "SSD", "v5e:2x2", {"data": 4}, {"global_batch": 64, **_MOMENTUM},
        architecture="ssd",
    ),
)  # fmt: skip
"""Thirty programs."""
