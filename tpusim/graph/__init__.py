"""Models as operations over named dimensions, their backward pass, and rematerialisation."""

from tpusim.graph.attention import Attention
from tpusim.graph.backward import training_step
from tpusim.graph.cut import Part, layer_count, part_of_model
from tpusim.graph.graph import Graph, Parameter, executed_flops, model_flops, walk
from tpusim.graph.lookup import Gather, Scatter
from tpusim.graph.ops import Op, Scan
from tpusim.graph.pointwise import Pointwise
from tpusim.graph.products import Convolution, Einsum, Window
from tpusim.graph.remat import POLICIES, Remat
from tpusim.graph.repeat import COPIES, NARROW, with_repeated_keys
from tpusim.graph.route import Route
from tpusim.graph.tensor import COMPUTE, STORED, Role, Sizes, Tensor, part_of, union_dims, whole_dim
from tpusim.graph.text import text
from tpusim.graph.tile import TILE, VOCAB_TILES, with_tiled_loss

__all__ = [
    "COMPUTE",
    "COPIES",
    "NARROW",
    "POLICIES",
    "STORED",
    "TILE",
    "VOCAB_TILES",
    "Attention",
    "Convolution",
    "Einsum",
    "Gather",
    "Graph",
    "Op",
    "Parameter",
    "Part",
    "Pointwise",
    "Remat",
    "Role",
    "Route",
    "Scan",
    "Scatter",
    "Sizes",
    "Tensor",
    "Window",
    "executed_flops",
    "layer_count",
    "model_flops",
    "part_of",
    "part_of_model",
    "text",
    "training_step",
    "union_dims",
    "walk",
    "whole_dim",
    "with_repeated_keys",
    "with_tiled_loss",
]
