"""The loss in tiles: the operations after the layers run on one part of the tokens at a time.

The logits of all tokens are then never in memory at once. Each tile's logits are computed again for
the backward pass, and the gradients of the weights that all tiles share are added up over them.

MaxText (vocabulary_tiling.py) writes a custom gradient over two scans and gathers the head before
them, so that its gradient is added up whole, in the dtype of the weights, and reduced once. A scan
under `jax.checkpoint` alone gathers the head in each tile, and reduces each tile's term of its
gradient: 27 of 27 programs on v4 to 7x (libtpu 0.0.42.1).
"""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from math import prod
from typing import Any

from tpusim.graph.graph import Graph
from tpusim.graph.ops import Op, Scan
from tpusim.graph.tensor import Tensor, part_of

VOCAB_TILES = "vocab_tiles"
"""The name of the scan over the tiles."""

TILE = "tile/"
"""Prefix of the names of tensors that are tiles of others; no plan names them."""


def with_tiled_loss(graph: Graph, parts: Mapping[str, int], apart: bool = False) -> Graph:
    """Return the forward graph with all that follows its last scan in a scan over tiles.

    parts: number of parts of each dimension of the loss, which divides its size.
    apart: each tile gathers weights and reduces their gradients for itself, see `Scan`.
    """
    cut = {dim: part_of(dim, count) for dim, count in parts.items() if count > 1}
    if not cut:
        return graph
    place = max((i for i, op in enumerate(graph.ops) if isinstance(op, Scan)), default=-1) + 1
    tiled = _scan(graph.ops[place:], cut, prod(parts.values()), graph.loss)
    tiled = replace(tiled, apart=apart)
    sizes = ((name, graph.sizes[dim] // parts[dim]) for dim, name in cut.items())
    return replace(graph, dims=(*graph.dims, *sizes), ops=(*graph.ops[:place], tiled))


def _scan(ops: tuple[Op, ...], cut: Mapping[str, str], trips: int, loss: Tensor) -> Scan:
    made = {tensor.name for op in ops for tensor in op.outputs}
    given = {t.name: t for op in ops for t in op.inputs if t.name not in made}.values()
    sliced = [tensor for tensor in given if not cut.keys().isdisjoint(tensor.dims)]
    outside = {tensor.name for tensor in (*sliced, loss)}

    def inside(tensor: Tensor) -> Tensor:
        name = f"{TILE}{tensor.name}" if tensor.name in outside else tensor.name
        return replace(tensor, name=name, dims=tuple(cut.get(dim, dim) for dim in tensor.dims))

    return Scan(
        VOCAB_TILES,
        trips,
        tuple(with_tensors(op, inside) for op in ops),
        slices=tuple((tensor, inside(tensor)) for tensor in sliced),
        stacks=((inside(loss), loss),),
        shared=tuple(tensor for tensor in given if tensor not in sliced),
        recomputed=True,
    )


def with_tensors(op: Op, other: Callable[[Tensor], Tensor]) -> Op:
    """Return the operation on other tensors: `other` of each of its own."""

    def changed(value: Any) -> Any:
        if isinstance(value, Tensor):
            return other(value)
        return tuple(map(changed, value)) if isinstance(value, tuple) else value

    return replace(op, **{field.name: changed(getattr(op, field.name)) for field in fields(op)})
