"""Division of each operation over mesh axes, given the layouts of its operands.

The choice follows GSPMD (arXiv:2105.04663, sections 3.2 and 3.5): contract where both operands are
sharded alike, keep the axes that the result wants, and move as little as possible otherwise.
"""

from collections.abc import Sequence

from tpusim.graph import (
    Attention,
    CachedAttention,
    LinearAttention,
    Tensor,
    TokenRouting,
    is_sequence,
    plain_dim,
)
from tpusim.partition.layout import Layout
from tpusim.plan import Axes

Split = dict[str, Axes]


def contraction(operands: Sequence[tuple[Tensor, Layout]], output: Tensor, wanted: Layout) -> Split:
    """Return the division of an einsum or a convolution.

    In this order, an axis once: contracted dimensions sharded alike in all operands; output
    dimensions that an operand has as the result wants them; output dimensions as an operand has
    them, or what is left of that where the result wants just that; contracted dimensions as an
    operand shards them (the other is sliced, the result is a partial sum); output dimensions that
    the result wants sharded and that no operand shards (the operands are sliced).
    """
    have: dict[str, list[Axes]] = {}
    for tensor, layout in operands:
        for dim, axes in zip(tensor.dims, layout, strict=True):
            have.setdefault(dim, []).append(axes)
    want = dict(zip(output.dims, wanted, strict=True))
    chosen = _AssignedAxes()
    contracted = [dim for dim in have if dim not in want]
    for dim in contracted:
        if len(have[dim]) > 1 and len(set(have[dim])) == 1:
            chosen.take(dim, have[dim][0])
    shared = [dim for dim in output.dims if dim in have]
    for dim in shared:
        if want[dim] in have[dim]:
            chosen.take(dim, want[dim])
    for dim in shared:
        for axes in have[dim]:
            chosen.take(dim, axes)
            if chosen.free(axes) == want[dim]:
                chosen.take(dim, want[dim])
    for dim in contracted:
        for axes in have[dim]:
            chosen.take(dim, chosen.free(axes))
    for dim in shared:
        chosen.take(dim, want[dim])
    return chosen.split


class _AssignedAxes:
    """Axes assigned so far, each to one dimension."""

    def __init__(self) -> None:
        self.split: Split = {}
        self._used: set[str] = set()

    def free(self, axes: Axes) -> Axes:
        return tuple(axis for axis in axes if axis not in self._used)

    def take(self, dim: str, axes: Axes) -> None:
        if axes and dim not in self.split and self.free(axes) == axes:
            self.split[dim] = axes
            self._used.update(axes)


def pointwise(
    inputs: Sequence[tuple[Tensor, Layout]],
    outputs: Sequence[tuple[Tensor, Layout]],
    repeats: Sequence[tuple[str, str]] = (),
    apart: bool = False,
) -> Split:
    """Return the division of a group: as its largest result; summed dimensions as operands.

    repeats: pairs of dimensions that may be divided alike.
    apart: its results are copies that share nothing, so each divides its own dimensions as it
        wants: K/V heads beside the queries'.
    """
    main, wanted = max(outputs, key=lambda pair: len(pair[0].dims))
    split = dict(zip(main.dims, wanted, strict=True))
    for tensor, layout in outputs if apart else ():
        split = dict(zip(tensor.dims, layout, strict=True)) | split
    alike = {dim: other for pair in repeats for dim, other in (pair, pair[::-1])}
    used = {axis for axes in split.values() for axis in axes}
    for tensor, layout in inputs:
        for dim, axes in zip(tensor.dims, layout, strict=True):
            if dim not in split and axes == split.get(alike.get(dim, "")):
                split[dim] = axes
            if dim not in split:
                split[dim] = tuple(axis for axis in axes if axis not in used)
                used.update(split[dim])
    return split


def attention(op: Attention, query: Layout, key: Layout) -> Split:
    """Return the division of a kernel: sequences and heads as the queries; each sees all keys."""
    split = dict(zip(op.query.dims, query, strict=True))
    heads = op.query.dims[2]
    for dim, axes in zip(op.key.dims[2:], key[2:], strict=True):
        if dim not in split:
            split[dim] = axes if axes == split.get(heads, ())[: len(axes)] else ()
    split[op.query.dims[-1]] = split[op.value.dims[-1]] = ()
    split[op.key.dims[1]] = ()
    return split


def cached_attention(op: CachedAttention, query: Layout, key: Layout) -> Split:
    """Return the division of a kernel over a cache: tokens and heads as the queries.

    The cache holds the keys of a device's own sequences, so it is divided as the tokens are.
    """
    split = dict(zip(op.query.dims, query, strict=True))
    heads = op.query.dims[2]
    for dim, axes in zip(op.key.dims[2:], key[2:], strict=True):
        if dim not in split:
            split[dim] = axes if axes == split.get(heads, ())[: len(axes)] else ()
    split[op.cached_key.dims[0]] = (*split[op.query.dims[0]], *split[op.query.dims[1]])
    split[op.query.dims[-1]] = split[op.value.dims[-1]] = ()
    return split


def linear_attention(op: LinearAttention, value: Layout) -> Split:
    """Return the division of a kernel of a recurrence: sequences and heads, those of keys alike.

    The sequence is whole on each device, as each token's state needs those of all before.
    """
    batch, sequence, heads, width = op.value.dims
    split = {batch: value[0], sequence: (), heads: value[2], width: ()}
    return dict.fromkeys((op.query.dims[2], op.key.dims[2]), value[2]) | split


def route(op: TokenRouting, tokens: Layout, gates: Layout) -> Split:
    """Return the division of a sort: tokens as their gates; each device fills its own slots.

    If gates are sharded by experts, each device serves its own experts for all tokens whose gates
    it has; a combine is then a partial sum over the axes of the experts.
    """
    dims = (*op.tokens.dims, *op.output.dims)
    split: Split = {dim: () for dim in dims if plain_dim(dim) == "expert"}
    split |= dict(zip(op.gates.dims, gates, strict=True))
    (sequence,) = (dim for dim in op.gates.dims if is_sequence(dim))
    for dim in dims:
        if plain_dim(dim) == "slot":
            split[dim] = split[sequence]
    used = {axis for axes in split.values() for axis in axes}
    for dim, axes in zip(op.tokens.dims, tokens, strict=True):
        if dim not in split:
            split[dim] = tuple(axis for axis in axes if axis not in used)
    return split


def send(op: TokenRouting, slots: Layout, gates: Layout) -> Split:
    """Return the division of the results of a kernel that sends rows to other devices by itself.

    A dispatch fills the slots of each device's own experts. A combine adds up tokens, which are
    divided as the gates are and, those of a sequence, over the other axes of the experts.
    """
    if op.dispatch:
        return dict(zip(op.output.dims, slots, strict=True))
    split = dict(zip(op.gates.dims, gates, strict=True))
    (sequence,) = (dim for dim in op.gates.dims if is_sequence(dim))
    used = {axis for axes in split.values() for axis in axes}
    split[sequence] += tuple(axis for axis in slots[0] if axis not in used)
    return split
