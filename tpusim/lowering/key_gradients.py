"""Gradients of gathered keys and values, which are summed beside the kernel of dQ.

A backward pass of two kernels begins with that of dK and dV. Where their sums run beside the core,
the kernel of dQ follows while they are on their way, so that keys and values are held besides, and
an asynchronous all-reduce has its result in a buffer of its own, of which the reader takes its
part. On 7x there are six tensors of all keys where v5p has four (65,536 tokens over 8 devices of
2x2x2, K and V of 32 and of 8 heads, libtpu 0.0.42.1).
"""

from collections.abc import Sequence

from tpusim.graph import Attention
from tpusim.lowering.body_entries import Entry, PlannedCollective
from tpusim.partition import ComputeNode
from tpusim.program import CollectiveKind, Mode


def read_beside_sums(entries: Sequence[Entry], fused: bool) -> dict[str, int]:
    """Return what a kernel of dQ reads, each with the place of the last sum that runs beside it.

    fused: one kernel makes all three gradients, and reads nothing later.
    """
    made: dict[str, tuple[str, ...]] = {}
    held: dict[str, int] = {}
    for place, entry in enumerate([] if fused else entries):
        if isinstance(entry, ComputeNode) and isinstance(entry.op, Attention):
            made |= dict.fromkeys(entry.writes, entry.reads if entry.op.backward else ())
        elif isinstance(entry, PlannedCollective) and entry.mode is Mode.ASYNC:
            held |= {key: place for result in entry.reads for key in made.get(result, ())}
    return held


def whole_sums(entry: Entry) -> dict[str, str]:
    """Return results that are parts of an asynchronous all-reduce, each with its operand."""
    if not isinstance(entry, PlannedCollective) or entry.mode is not Mode.ASYNC:
        return {}
    if entry.algorithm != CollectiveKind.ALL_REDUCE:
        return {}
    return {
        each.writes[0]: each.reads[0]
        for each in entry.collectives
        if each.kind is CollectiveKind.REDUCE_SCATTER
    }
