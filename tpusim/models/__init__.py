"""Models: builders of graphs, published dimensions and Hugging Face configs."""

from tpusim.models.architecture import Architecture, GraphChoices
from tpusim.models.encoder_decoder import EncoderDecoder, encoder_decoder
from tpusim.models.evolved_transformer import EvolvedTransformer
from tpusim.models.hf import from_hf, hf_dimensions, hf_notes
from tpusim.models.pieces import ExpertRouting, Latent, LossForm, MoE
from tpusim.models.recurrent import Gnmt
from tpusim.models.self_attention import SelfAttention
from tpusim.models.transformer import MODEL_KEYS, Transformer
from tpusim.models.zoo import dimensions, load, names, source

__all__ = [
    "MODEL_KEYS",
    "Architecture",
    "EncoderDecoder",
    "EvolvedTransformer",
    "ExpertRouting",
    "Gnmt",
    "GraphChoices",
    "Latent",
    "LossForm",
    "MoE",
    "SelfAttention",
    "Transformer",
    "dimensions",
    "encoder_decoder",
    "from_hf",
    "hf_dimensions",
    "hf_notes",
    "load",
    "names",
    "source",
]
