"""Gradients of heads that are all-reduced, as their columns cannot be cut for a reduce-scatter."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeGuard

from tpusim.base.divisors import divisor_from
from tpusim.graph import plain_dim
from tpusim.lowering.body_entries import Entry, PlannedCollective
from tpusim.lowering.decisions import Body, LoweringDecisions
from tpusim.partition import CollectiveNode, Purpose
from tpusim.program import LANES, CollectiveKind, Mode

_MOST_TILES = {"v4": 128, "v5p": 128, "v5e": 160, "v6e": 256}
"""The most tiles of columns that are reduced together, by generation. Programs show 125 and not 131
(v4), 131 and not 167 (v5e), and 167 (v6e); v5p is taken to be as v4."""


def reduce_heads_whole(entries: Sequence[Entry], body: Body) -> list[Entry]:
    """Return the entries with all-reduces for heads, of which each device takes its part.

    A reduce-scatter over n devices needs a divisor of the tiles of 128 columns, of n or more and
    not too many. A vocabulary of 128,256 has 1,002 tiles, whose divisors are 6 and less or 167 and
    more: over 8 devices it is all-reduced on v4, v5e and v5p, and scattered on v6e, and over 4 on
    all. So are 151,936 words (1,187 tiles) on all, 127,360, 155,008 and 92,672 on v4; of 128,000,
    129,280, 102,400, 96,000, 49,152, 134,144, 173,952 and 32,000 words none is. Tables have
    `embed` in their columns. So are 76 of 78 heads of compiled plans on v4 to v6e, 21 of which were
    made for this; the others are a table of 151,936 words on v5p and one over 128 devices of v6e
    (libtpu 0.0.42.1).
    """
    return [
        replace(entry, algorithm=str(CollectiveKind.ALL_REDUCE))
        if _is_scattered_head(entry) and body.ask(_stays_whole, entry.collectives[0])
        else entry
        for entry in entries
    ]


def _is_scattered_head(entry: Entry) -> TypeGuard[PlannedCollective]:
    if not isinstance(entry, PlannedCollective) or entry.mode is not Mode.SYNC:
        return False
    first = entry.collectives[0]
    return (
        len(entry.collectives) == 1
        and first.kind is CollectiveKind.REDUCE_SCATTER
        and first.purpose is Purpose.GRADIENT
        and "vocab" in map(plain_dim, first.payload.dims)
    )


def _stays_whole(decisions: LoweringDecisions, collective: CollectiveNode) -> bool:
    """Return True if no divisor of the tiles of columns suits the group."""
    most = _MOST_TILES.get(decisions.chip.generation)
    sizes, dim = decisions.sizes, collective.payload.dims[-1]
    columns = int(sizes.extent(dim, collective.payload.split().get(dim, ())))
    if most is None or columns % LANES:
        return False
    tiles, devices = columns // LANES, int(sizes.group(collective.axes))
    return tiles < devices or divisor_from(tiles, devices) > most
