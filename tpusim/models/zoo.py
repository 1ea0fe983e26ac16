"""The architectures, and the published models of all of them by name."""

from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

from tpusim.base.errors import ModelError
from tpusim.base.model_names import nearest_model
from tpusim.base.shown_value import cut
from tpusim.models.architecture import Architecture
from tpusim.models.bert import Bert
from tpusim.models.conformer import Conformer
from tpusim.models.contrastive_captioner import ContrastiveCaptioner
from tpusim.models.detectors import SSD, MaskRCNN
from tpusim.models.diffusion_unet import DiffusionUNet
from tpusim.models.encoder_decoder import EncoderDecoder
from tpusim.models.evolved_transformer import EvolvedTransformer
from tpusim.models.image_decoder import ImageDecoder
from tpusim.models.joint_transformer import JointTransformer
from tpusim.models.metnet2 import MetNet2
from tpusim.models.mlp_mixer import MlpMixer
from tpusim.models.published_models import is_published, published_models
from tpusim.models.recurrent import Gnmt
from tpusim.models.resnet import ResNet
from tpusim.models.single_stream_transformer import SingleStreamTransformer
from tpusim.models.transformer import Transformer
from tpusim.models.two_towers import TwoTowers
from tpusim.models.unet3d import UNet3d
from tpusim.models.video_transformer import VideoTransformer
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
    "contrastive-captioner": ContrastiveCaptioner,
    "conformer": Conformer,
    "resnet": ResNet,
    "ssd": SSD,
    "mask-rcnn": MaskRCNN,
    "unet3d": UNet3d,
    "diffusion-unet": DiffusionUNet,
    "image-decoder": ImageDecoder,
    "joint-transformer": JointTransformer,
    "single-stream-transformer": SingleStreamTransformer,
    "video-transformer": VideoTransformer,
    "metnet-2": MetNet2,
}
"""The architectures of a run file, by the name that it gives them."""

ARCHITECTURE_NAMES = {kind: name for name, kind in ARCHITECTURES.items()}


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
    return kind.published(name, **given)


def unknown(name: object) -> str:
    """Return the message for a name that is not in the zoo: what is meant, or the other doors."""
    known = names()
    doors = (
        f"`tpusim models` lists the {len(known)} that there are; others are read from Hugging "
        "Face's config.json (hf = ..., from_hf) or MaxText's configs (from_maxtext), or get their "
        "own dimensions (layers = ..., Transformer)"
    )
    return f"no model {cut(repr(name))} in the zoo; {nearest_model(str(name), known, doors)}"


def architecture_of(name: str) -> type[Architecture] | None:
    """Return the class of the published model of this name; None if there is none."""
    kinds = ARCHITECTURES.values()
    return next((kind for kind in kinds if is_published(kind.PUBLISHED, name)), None)


def names(kind: type[Architecture] | None = None) -> tuple[str, ...]:
    """Return the names that `load` knows: of all architectures, or of one."""
    kinds = ARCHITECTURES.values() if kind is None else (kind,)
    return tuple(name for each in kinds for name in published_models(each.PUBLISHED))


def source(name: str) -> str:
    """Return the source of a model's dimensions: paper and table, or repository and file.

    Raise ModelError with the nearest names if there is none of this name.
    """
    kind = architecture_of(name)
    if kind is None:
        raise ModelError(unknown(name))
    return str(published_models(kind.PUBLISHED)[name]["source"])
