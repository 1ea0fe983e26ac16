"""Builders of graphs: a model family is a page that writes its forward pass."""

from tpusim.models.transformer import Transformer
from tpusim.models.zoo import dimensions, load, names, source

__all__ = ["Transformer", "dimensions", "load", "names", "source"]
