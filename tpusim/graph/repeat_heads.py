"""Repetition of K/V heads before an attention kernel, for axes larger than their number."""

from dataclasses import replace

from tpusim.graph.attention import Attention
from tpusim.graph.function import REPEAT
from tpusim.graph.graph import Graph
from tpusim.graph.ops import Op, Scan
from tpusim.graph.pointwise import Pointwise
from tpusim.graph.tensor import Tensor

NARROW, COPIES = "kv_heads", "kv_copies"


def with_repeated_keys(graph: Graph, copies: int) -> Graph:
    """Return the forward pass with each kernel's K/V heads repeated to `copies` heads.

    They are repeated before they are resharded for the kernel, so that the collective can divide
    them among devices (Ulysses with grouped queries repeats them to its axis).
    """
    return replace(graph, dims=(*graph.dims, (COPIES, copies)), ops=_repeated(graph.ops))


def _repeated(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    narrow = {
        t.name
        for op in ops
        if isinstance(op, Attention)
        for t in (op.key, op.value)
        if NARROW in t.dims
    }
    return tuple(made for op in ops for made in _with_repeats(op, narrow))


def _with_repeats(op: Op, narrow: set[str]) -> tuple[Op, ...]:
    if isinstance(op, Scan):
        return (replace(op, body=_repeated(op.body)),)
    if isinstance(op, Attention):
        return (
            replace(op, key=_with_repeated_heads(op.key), value=_with_repeated_heads(op.value)),
        )
    if not isinstance(op, Pointwise) or narrow.isdisjoint(t.name for t in op.outputs):
        return (op,)
    repeats: list[Op] = []
    given = list(op.inputs)
    for place, made in enumerate(op.outputs):
        if made.name in narrow:
            one = op.inputs[place]
            given[place] = replace(_with_repeated_heads(one), name=f"{one.name}_repeated")
            name, pairs = f"{one.name}_repeat", ((NARROW, COPIES),)
            repeats.append(
                Pointwise(
                    name, (one,), (given[place],), 1.0, keeps="", repeats=pairs, function=REPEAT
                )
            )
    outputs = tuple(_with_repeated_heads(t) if t.name in narrow else t for t in op.outputs)
    return (*repeats, replace(op, inputs=tuple(given), outputs=outputs))


def _with_repeated_heads(tensor: Tensor) -> Tensor:
    """Return the tensor with its K/V heads repeated."""
    return tensor.view(tuple(COPIES if dim == NARROW else dim for dim in tensor.dims))
