"""Linear attention with a state: the form of serving, whose tokens follow those of steps before."""

from dataclasses import replace

from tpusim.graph.graph import Graph
from tpusim.graph.linear_attention import LinearAttention
from tpusim.graph.ops import Op, Scan
from tpusim.graph.pointwise import Pointwise
from tpusim.graph.tensor import Tensor, TensorRole, plain_dim

TAPS, PAST = "conv_taps", "conv_past"
"""Dimensions of a short convolution: its taps, and the tokens before those of the step."""


def with_linear_states(graph: Graph, dtype: str = "f32") -> Graph:
    """Return a forward pass whose linear attention goes on from states that stay in HBM.

    Each kernel reads and writes the state of each sequence once, [batch, heads, width, value
    width]. Each short convolution reads the tokens before, [batch, taps - 1, heads, width]; that
    they are written is not counted. A graph without linear attention is returned as it is.

    dtype: of the kernels' states; f32 in SGLang-JAX (kernels/gdn/gated_delta.py) and in
        huggingface/transformers (models/kimi_linear).
    """
    return replace(graph, ops=_with_states(graph.ops, dtype))


def _with_states(ops: tuple[Op, ...], dtype: str) -> tuple[Op, ...]:
    return tuple(_with_state(op, dtype) for op in ops)


def _with_state(op: Op, dtype: str) -> Op:
    if isinstance(op, Scan):
        return replace(op, body=_with_states(op.body, dtype))
    if isinstance(op, LinearAttention):
        batch, _, heads, value_width = op.value.dims
        dims = (batch, heads, op.key.dims[-1], value_width)
        return replace(op, state=Tensor(f"{op.name}_state", dims, TensorRole.STATE, dtype))
    if isinstance(op, Pointwise) and any(TAPS in map(plain_dim, t.dims) for t in op.inputs):
        x, *others = op.inputs
        (taps,) = {dim for t in others for dim in t.dims if plain_dim(dim) == TAPS}
        kept = (x.dims[0], taps.replace(TAPS, PAST), *x.dims[2:])
        past = Tensor(f"{op.name}_state", kept, TensorRole.STATE)
        return replace(op, inputs=(x, *others, past))
    return op
