"""Weights gathered in shards whose rows do not fill whole tiles: one row in each tile of two.

The smallest tile of 16-bit elements has two rows. A layer of a stack has its dimension of one
between the rows of the weight, so that shards of any number of rows follow one another, and every
tile is half empty. A matmul brings such a weight into whole tiles as it reads it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tpusim.base.phase import Phase
from tpusim.graph import COMPUTE, Einsum
from tpusim.lowering.body_entries import Entry, PlannedCollective
from tpusim.lowering.decisions import Body, LoweringDecisions
from tpusim.partition import CollectiveNode, ComputeNode, Purpose
from tpusim.program import SUBLANES, CollectiveKind, Mode

_MATRIX = 2
"""Dimensions of a weight that has such tiles; the others have whole ones for each row."""

_GENERATIONS = ("7x",)
"""Those whose matmuls were seen to read them."""


def fill_half_tiles(entries: Sequence[Entry], body: Body) -> list[Entry]:
    """Return the entries with matmuls marked that read a weight in half-empty tiles.

    Of layers of 3840 by 15360 on 7x 4x4x4, shards of 30 and 60 rows are gathered as
    `{2,0,1:T(2,128)}`, and matmuls read them so, but for those of the backward pass that sum over
    the rows: the SparseCore copies their weight before. Shards of 120 rows, and of 8 on 4x8x8, are
    gathered as `T(8,128)` (libtpu 0.0.42.1, with the flags of MaxText's recipe); with plain flags,
    100 rows on 2x2x2 as the first. Beside rings, shards of 60 rows are padded to 64, and copied.
    """
    rows = {
        collective.writes[0]: collective.dim
        for entry in entries
        if isinstance(entry, PlannedCollective) and entry.algorithm != CollectiveKind.ALL_REDUCE
        for collective in entry.collectives
        if _is_matrix(collective)
        and body.over(collective.axes).gather is not Mode.RING
        and body.ask(_leaves_rows, collective)
    }
    return [_marked(entry, rows) for entry in entries]


def _marked(entry: Entry, rows: Mapping[str, str]) -> Entry:
    """rows: the dimension of the rows of each weight in half-empty tiles."""
    if not (isinstance(entry, ComputeNode) and isinstance(entry.op, Einsum)) or entry.op.ragged:
        return entry
    read = next((rows[key] for key in entry.reads if key in rows), "")
    copied = entry.phase is Phase.BACKWARD and read not in entry.op.output.dims
    if copied or not read:
        return entry
    return replace(entry, half_tiles=read)


def _is_matrix(node: CollectiveNode) -> bool:
    gathers = node.kind is CollectiveKind.ALL_GATHER and node.purpose is Purpose.WEIGHT
    return gathers and node.dtype == COMPUTE and len(node.payload.dims) == _MATRIX


def _leaves_rows(decisions: LoweringDecisions, node: CollectiveNode) -> bool:
    rows = decisions.sizes.extent(node.dim, node.axes)
    return decisions.chip.generation in _GENERATIONS and bool(rows % SUBLANES)
