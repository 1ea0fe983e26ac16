"""Models: builders of graphs, published dimensions and Hugging Face configs."""

from tpusim.models.architecture import Architecture, GraphChoices
from tpusim.models.hf import from_hf, hf_dimensions, hf_notes
from tpusim.models.pieces import ExpertRouting, Latent, LossForm, MoE
from tpusim.models.self_attention import SelfAttention
from tpusim.models.transformer import MODEL_KEYS, Transformer
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
    "ExpertRouting",
    "GraphChoices",
    "Latent",
    "LossForm",
    "MoE",
    "SelfAttention",
    "Transformer",
    "architecture_of",
    "dimensions",
    "from_hf",
    "hf_dimensions",
    "hf_notes",
    "load",
    "names",
    "source",
    "unknown",
]
