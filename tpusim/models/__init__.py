"""Builders of graphs: a model family is a page that writes its forward pass."""

from tpusim.models.experts import Routing
from tpusim.models.hf import from_hf, hf_dimensions, hf_notes
from tpusim.models.transformer import Transformer
from tpusim.models.zoo import dimensions, load, names, source

__all__ = [
    "Routing",
    "Transformer",
    "dimensions",
    "from_hf",
    "hf_dimensions",
    "hf_notes",
    "load",
    "names",
    "source",
]
