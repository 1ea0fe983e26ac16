"""Models: builders of graphs, published dimensions and Hugging Face configs."""

from tpusim.models.architecture import Architecture, GraphChoices
from tpusim.models.bert import Bert
from tpusim.models.conformer import Conformer
from tpusim.models.detectors import SSD, MaskRCNN
from tpusim.models.diffusion_unet import DiffusionUNet
from tpusim.models.encoder_decoder import EncoderDecoder
from tpusim.models.evolved_transformer import EvolvedTransformer
from tpusim.models.hf import from_hf, hf_architecture, hf_dimensions, hf_notes
from tpusim.models.joint_transformer import JointTransformer
from tpusim.models.metnet2 import MetNet2
from tpusim.models.mlp_mixer import MlpMixer
from tpusim.models.model_keys import MODEL_KEYS
from tpusim.models.pieces import ExpertRouting, Latent, LossForm, MoE
from tpusim.models.recurrent import Gnmt
from tpusim.models.resnet import ResNet
from tpusim.models.self_attention import SelfAttention
from tpusim.models.transformer import Transformer
from tpusim.models.two_towers import TextTower, TwoTowers
from tpusim.models.unet3d import UNet3d
from tpusim.models.vision_transformer import VisionTransformer
from tpusim.models.zoo import (
    ARCHITECTURES,
    architecture_of,
    dimensions,
    load,
    names,
    source,
    unknown,
)

__all__ = [
    "ARCHITECTURES",
    "MODEL_KEYS",
    "SSD",
    "Architecture",
    "Bert",
    "Conformer",
    "DiffusionUNet",
    "EncoderDecoder",
    "EvolvedTransformer",
    "ExpertRouting",
    "Gnmt",
    "GraphChoices",
    "JointTransformer",
    "Latent",
    "LossForm",
    "MaskRCNN",
    "MetNet2",
    "MlpMixer",
    "MoE",
    "ResNet",
    "SelfAttention",
    "TextTower",
    "Transformer",
    "TwoTowers",
    "UNet3d",
    "VisionTransformer",
    "architecture_of",
    "dimensions",
    "from_hf",
    "hf_architecture",
    "hf_dimensions",
    "hf_notes",
    "load",
    "names",
    "source",
    "unknown",
]
