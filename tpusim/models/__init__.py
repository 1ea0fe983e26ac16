"""Builders of graphs: a model family is a page that writes its forward pass."""

from tpusim.models.transformer import Transformer

__all__ = ["Transformer"]
