"""Embedding lookups: whether the table is gathered, or the rows are exchanged.

A table is sharded over the axes that also shard the tokens. Its lookup can gather the table, or the
numbers of all tokens: each device then looks up its own columns for all of them, and an all-to-all
gives each its tokens with all columns. The compiler does the latter where the tokens of all copies
of a shard of the table are fewer than its rows: 142 of 147 lookups of plain programs for v2 to v6e,
on both sides of the bound (libtpu 0.0.42.1). On 7x it gathers the table forward, which is not
followed here. Where axes shard sequences too, no all-to-all leads from columns to tokens: all rows
of all tokens are gathered, and each device takes its part, forward and backward. The compiler does
so where all tokens, not those of the copies of a shard, are fewer than the rows of the table: 10 of
10 programs on both sides of the bound on v5e, v5p and v6e; on 7x it takes two all-to-alls (2 of 2).
So are those of a table that the head reads too, which is gathered for the head alone; its gradient
is the head's, to which each device adds the rows of its own columns.

Where further axes shard the tokens (`data` beside `fsdp`), GSPMD has no all-to-all for the
gradients of the rows. Either all devices gather them all, of which each takes the tokens of its
group and its columns, or each adds its own tokens to a whole table, which is all-reduced. The
former moves all tokens, the latter the table twice, and the compiler takes what is less: 8 of 8
programs of 0.5 to 1.3 times as many tokens as rows gather, 14 of 14 of 2.04 times and more do not
(v2 to 7x; libtpu 0.0.42.1).

Where gradients are reduced once per step, a table that the head reads too is gathered for its
lookup: a term of its own columns is whole and the head's is not, so the two could not be added
before they are reduced.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from math import prod
from typing import NamedTuple

from tpusim.base.phase import Phase
from tpusim.graph import Gather, Graph, walk
from tpusim.partition.layout import Layout, within_slice
from tpusim.plan import Sharding

STYLE = "plain"
"""The style of the programs that show it."""


class RowMoves(NamedTuple):
    """The names of the tables whose rows move, in place of the table.

    exchanged: those whose rows are exchanged forward, and their gradients backward unless they are
        among the following.
    gathered: those of whose rows all devices gather all gradients.
    whole: those whose gradient each device makes whole, of its own tokens.
    """

    exchanged: frozenset[str] = frozenset()
    gathered: frozenset[str] = frozenset()
    whole: frozenset[str] = frozenset()


NO_MOVES = RowMoves()


def row_moves(
    graph: Graph, sharding: Sharding, style: str, found: Mapping[str, Layout], late: bool
) -> RowMoves:
    """Return which rows of tables move.

    found: layout of each tensor of the forward pass.
    late: gradients are summed over devices once per step, not once per microbatch.
    """
    if style != STYLE:
        return RowMoves()
    exchanged = {op.table.name: op for op in _exchanged(graph, sharding, found)}
    summed = _sums_of_terms(graph)
    if late:
        exchanged = {name: op for name, op in exchanged.items() if name not in summed}
    moved = {
        name: prod(graph.sizes[dim] for dim in op.ids.dims) < 2 * graph.sizes[op.dim]
        for name, op in exchanged.items()
        if name not in summed and _is_copied(op, sharding, found)
    }
    gathered = frozenset(name for name, fewer in moved.items() if fewer)
    return RowMoves(frozenset(exchanged), gathered, frozenset(moved) - gathered)


def _is_copied(op: Gather, sharding: Sharding, found: Mapping[str, Layout]) -> bool:
    """Return True if axes shard the tokens that do not shard the table."""
    columns = {axis for axes in found[op.table.name] for axis in axes}
    tokens = {axis for axes in found[op.ids.name] for axis in axes}
    return any(sharding.mesh[axis] > 1 for axis in tokens - columns)


def _sums_of_terms(graph: Graph) -> frozenset[str]:
    """Return the names of trained weights with several readers, whose gradients are added up."""
    forward = (op for op, _ in walk(graph.ops) if op.phase is Phase.FORWARD)
    readers = Counter(tensor.name for op in forward for tensor in op.inputs)
    return frozenset(weight for weight, _ in graph.gradients if readers[weight] > 1)


def _exchanged(graph: Graph, sharding: Sharding, found: Mapping[str, Layout]) -> Iterator[Gather]:
    """Yield the lookups whose rows are exchanged."""
    sizes = graph.sizes
    forward = [op for op, _ in walk(graph.ops) if op.phase is Phase.FORWARD]
    for op in forward:
        if not isinstance(op, Gather):
            continue
        ids, table = found[op.ids.name], found[op.table.name]
        columns = tuple(
            axis
            for dim, axes in zip(op.table.dims, table, strict=True)
            if dim != op.dim
            for axis in axes
        )
        made = found[op.output.name]
        whole = all(not axes for axes in made[len(ids) :])
        of_batch = set(columns) <= set(ids[0])
        of_tokens = set(columns) <= {axis for axes in ids for axis in axes}
        copies = prod(sharding.mesh[axis] for axis in columns) if of_batch else 1
        tokens = prod(sizes[dim] for dim in op.ids.dims) // copies
        same = of_tokens and within_slice(columns) == columns
        if columns and whole and same and tokens < sizes[op.dim]:
            yield op
