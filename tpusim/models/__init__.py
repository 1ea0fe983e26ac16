"""Models: builders of graphs, published dimensions and Hugging Face configs."""

from tpusim.models.experts import ExpertRouting, MoE
from tpusim.models.hf import from_hf, hf_dimensions, hf_notes
from tpusim.models.latent import Latent
from tpusim.models.loss import LossForm
from tpusim.models.self_attention import SelfAttention
from tpusim.models.transformer import MODEL_KEYS, Transformer
from tpusim.models.zoo import dimensions, load, names, source

__all__ = [
    "MODEL_KEYS",
    "ExpertRouting",
    "Latent",
    "LossForm",
    "MoE",
    "SelfAttention",
    "Transformer",
    "dimensions",
    "from_hf",
    "hf_dimensions",
    "hf_notes",
    "load",
    "names",
    "source",
]
