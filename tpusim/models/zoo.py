"""Published models by name: transformers of `zoo.toml`, and those of other architectures."""

import tomllib
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from importlib import resources
from typing import Any

from tpusim.base.errors import ModelError, nearest
from tpusim.models.architecture import Architecture
from tpusim.models.bert import Bert
from tpusim.models.conformer import Conformer
from tpusim.models.detectors import SSD, MaskRCNN
from tpusim.models.diffusion_unet import DiffusionUNet
from tpusim.models.encoder_decoder import EncoderDecoder
from tpusim.models.evolved_transformer import EvolvedTransformer
from tpusim.models.joint_transformer import JointTransformer
from tpusim.models.metnet2 import MetNet2
from tpusim.models.mlp_mixer import MlpMixer
from tpusim.models.recurrent import Gnmt
from tpusim.models.resnet import ResNet
from tpusim.models.transformer import Transformer
from tpusim.models.two_towers import TwoTowers
from tpusim.models.unet3d import UNet3d
from tpusim.models.vision_transformer import VisionTransformer

ARCHITECTURES: Mapping[str, type[Architecture]] = {
    "transformer": Transformer,
    "bert": Bert,
    "encoder-decoder": EncoderDecoder,
    "evolved-transformer": EvolvedTransformer,
    "gnmt": Gnmt,
    "vision-transformer": VisionTransformer,
    "mlp-mixer": MlpMixer,
    "two-towers": TwoTowers,
    "conformer": Conformer,
    "resnet": ResNet,
    "ssd": SSD,
    "mask-rcnn": MaskRCNN,
    "unet3d": UNet3d,
    "diffusion-unet": DiffusionUNet,
    "joint-transformer": JointTransformer,
    "metnet-2": MetNet2,
}
"""The architectures of a run file, by the name that it gives them."""

_SOURCES = {
    "bert-": "arXiv:1810.04805, section 3",
    "t5-": "arXiv:1910.10683, section 3.1.2 and the table of variants",
    "t5-v1.1-": "google-research/text-to-text-transfer-transformer, released_checkpoints.md",
    "mt5-": "arXiv:2010.11934, and released_checkpoints.md of its repository",
    "switch-base": "arXiv:2101.03961, table 1",
    "transformer-big": "arXiv:1706.03762, table 3",
    "transformer-big-mlperf": "arXiv:1706.03762, table 3; mlcommons/training, translation",
    "gshard-m4-": "arXiv:2006.16668, table 1",
    "parti-": "arXiv:2206.10789, section 2.2 and table 1",
    "vit-": "arXiv:2106.04560, table 2; big_vision, vit.py",
    "vit-22b": "arXiv:2302.05442, table 1 and section 2",
    "mixer-": "arXiv:2105.01601, table 1",
    "clip-": "arXiv:2103.00020, table 20; openai/CLIP, model.py",
    "siglip-": "arXiv:2303.15343; big_vision, SigLIP_demo.ipynb",
    "lit-": "arXiv:2111.07991; big_vision, lit_coco.py",
    "conformer-": "arXiv:2109.13226 and arXiv:2010.10504",
    "resnet-": "arXiv:1512.03385, table 1",
    "bit-": "arXiv:1912.11370, section 3.1",
    "stable-diffusion-v": "arXiv:2112.10752; diffusers, UNet2DConditionModel",
    "stable-diffusion-3": "arXiv:2403.03206, section 5.3",
    "flux-": "AI-Hypercomputer/maxdiffusion, base_flux_dev.yml",
}
"""The sources of what `zoo.toml` has not, by the beginning of names; the longest one counts."""


def load(name: str, **changes: Any) -> Any:
    """Return the model of this name, an `Architecture`, with some fields changed.

    Raise ModelError with the nearest names if there is none.

    >>> load("bert-480b").parameter_count
    481806958592
    """
    kind = architecture_of(name) if isinstance(name, str) else None
    if kind is None:
        raise ModelError(unknown(name))
    said = ", ".join(key if is_dataclass(v) else f"{key}={v}" for key, v in changes.items())
    given = {"name": f"{name} with {said}" if said else name, **changes}
    if kind is Transformer:
        return Transformer(**{**dimensions(name), **given})
    return kind.published(name, **given)


def unknown(name: object) -> str:
    """Return the message for a name that is not in the zoo, with the nearest ones."""
    known = names()
    listed = f"`tpusim models` lists the {len(known)} that there are"
    return f"no model {name!r} in the zoo; {nearest(str(name), known, listed)}"


def architecture_of(name: str) -> type[Architecture] | None:
    """Return the class of the published model of this name; None if there is none."""
    if name in _entries():
        return Transformer
    return next((kind for kind in ARCHITECTURES.values() if name in kind.PUBLISHED), None)


def dimensions(name: str) -> dict[str, Any]:
    """Return the dimensions of a transformer as its source gives them; the rest follows."""
    return {key: value for key, value in _entry(name).items() if key != "source"}


def names(kind: type[Architecture] | None = None) -> tuple[str, ...]:
    """Return the names that `load` knows: of all architectures, or of one."""
    others = tuple(
        name for one in ARCHITECTURES.values() if kind in (None, one) for name in one.PUBLISHED
    )
    return (*(_entries() if kind in (None, Transformer) else ()), *others)


def source(name: str) -> str:
    """Return the source of a model's dimensions: paper and table, or repository and file.

    Raise ModelError with the nearest names if there is none of this name.
    """
    if architecture_of(name) is None:
        raise ModelError(unknown(name))
    if name in _entries():
        return str(_entry(name)["source"])
    begins = [start for start in _SOURCES if name.startswith(start)]
    return _SOURCES[max(begins, key=len)] if begins else ""


def _entry(name: str) -> Mapping[str, Any]:
    if name not in _entries():
        raise ModelError(f"no model {name!r} in the zoo; {nearest(str(name), _entries())}")
    return _entries()[name]


@cache
def _entries() -> Mapping[str, Mapping[str, Any]]:
    text = (resources.files("tpusim.models") / "zoo.toml").read_text("utf-8")
    return tomllib.loads(text)
