"""Models as operations over named dimensions, their backward pass, and rematerialisation."""

from tpusim.graph.attention import Attention
from tpusim.graph.backward import training_step
from tpusim.graph.contractions import Einsum
from tpusim.graph.convolution import Convolution, Pool, WindowsRead
from tpusim.graph.forward_pass import forward_pass
from tpusim.graph.function import ADD, COPY, PARTS, REPEAT, Function, function
from tpusim.graph.gather import Gather, Scatter
from tpusim.graph.graph import LOSS, Graph, Parameter, executed_flops, model_flops, walk
from tpusim.graph.layer_row import LayerRow, layer_count, layer_row
from tpusim.graph.matrices import Matrix, layer_matrices
from tpusim.graph.model_parts import (
    ModelPart,
    Tiling,
    chunk_of_model,
    joint_of_model,
    part_of_model,
    split_part_of_model,
)
from tpusim.graph.ops import Op, Scan
from tpusim.graph.pointwise import Pointwise
from tpusim.graph.remat import LAYER_IN, POLICIES, Remat
from tpusim.graph.repeat_heads import COPIES, NARROW, with_repeated_keys
from tpusim.graph.reshape import Reshape
from tpusim.graph.state import StateUpdate
from tpusim.graph.tensor import (
    COMPUTE,
    INPUT,
    KEYS,
    PART_DOT,
    STORED,
    DimSizes,
    Tensor,
    TensorRole,
    is_sequence,
    part_of,
    plain_dim,
    renamed,
    union_dims,
    whole_dim,
)
from tpusim.graph.tiled_loss import TILE, VOCAB_TILES, with_tiled_loss
from tpusim.graph.token_routing import TokenRouting
from tpusim.graph.window import ConvolutionWindow, Padding
from tpusim.graph.writer import GraphWriter

__all__ = [
    "ADD",
    "COMPUTE",
    "COPIES",
    "COPY",
    "INPUT",
    "KEYS",
    "LAYER_IN",
    "LOSS",
    "NARROW",
    "PARTS",
    "PART_DOT",
    "POLICIES",
    "REPEAT",
    "STORED",
    "TILE",
    "VOCAB_TILES",
    "Attention",
    "Convolution",
    "ConvolutionWindow",
    "DimSizes",
    "Einsum",
    "Function",
    "Gather",
    "Graph",
    "GraphWriter",
    "LayerRow",
    "Matrix",
    "ModelPart",
    "Op",
    "Padding",
    "Parameter",
    "Pointwise",
    "Pool",
    "Remat",
    "Reshape",
    "Scan",
    "Scatter",
    "StateUpdate",
    "Tensor",
    "TensorRole",
    "Tiling",
    "TokenRouting",
    "WindowsRead",
    "chunk_of_model",
    "executed_flops",
    "forward_pass",
    "function",
    "is_sequence",
    "joint_of_model",
    "layer_count",
    "layer_matrices",
    "layer_row",
    "model_flops",
    "part_of",
    "part_of_model",
    "plain_dim",
    "renamed",
    "split_part_of_model",
    "training_step",
    "union_dims",
    "walk",
    "whole_dim",
    "with_repeated_keys",
    "with_tiled_loss",
]
