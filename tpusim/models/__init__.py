"""Models: builders of graphs, published dimensions and Hugging Face configs."""

from tpusim.models.architecture import Architecture, GraphChoices
from tpusim.models.conformer import Conformer
from tpusim.models.encoder_decoder import EncoderDecoder, encoder_decoder
from tpusim.models.evolved_transformer import EvolvedTransformer
from tpusim.models.hf import from_hf, hf_dimensions, hf_notes
from tpusim.models.mlp_mixer import MlpMixer
from tpusim.models.pieces import ExpertRouting, Latent, LossForm, MoE
from tpusim.models.recurrent import Gnmt
from tpusim.models.self_attention import SelfAttention
from tpusim.models.transformer import MODEL_KEYS, Transformer
from tpusim.models.two_towers import TextTower, TwoTowers
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
    "Architecture",
    "Conformer",
    "EncoderDecoder",
    "EvolvedTransformer",
    "ExpertRouting",
    "Gnmt",
    "GraphChoices",
    "Latent",
    "LossForm",
    "MoE",
    "MlpMixer",
    "SelfAttention",
    "TextTower",
    "Transformer",
    "TwoTowers",
    "VisionTransformer",
    "architecture_of",
    "dimensions",
    "encoder_decoder",
    "from_hf",
    "hf_dimensions",
    "hf_notes",
    "load",
    "names",
    "source",
    "unknown",
]
