"""Copies of what waits for the rings of layers that are not scanned, where the SparseCore moves.

The ring for a weight's gradient slices one operand along the dimension that it scatters, and reads
the other a matrix at a time: both in another layout than the matmuls before them left. On the other
chips that copy takes the place of what it is made of.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TypeGuard

from tpusim.graph import is_sequence
from tpusim.lowering.body_entries import CollectiveMatmul, Entry
from tpusim.lowering.decisions import Body
from tpusim.lowering.observed.exchange_copies import turned_copy
from tpusim.partition import Buffer, ComputeNode


def copy_ring_operands(entries: Sequence[Entry], body: Body) -> list[Entry]:
    """Copy each operand of a ring that waits as soon as it is there, and hold both until then.

    An operand without the scattered dimension that has one dimension beside the tokens stays as
    it is, so the MLP's hidden layer does; and what rings alone read is made in their layout: 7x
    2x2x2, four and eight layers, 3 f + 15 e a layer in place of 3 f + 8 e, and 3 f + 12 e where the
    results of matmuls are saved, so that nothing else reads the norms again (libtpu 0.0.42.1).
    """
    copies: dict[str, ComputeNode] = {}
    others = {key for entry in entries if not _waits(entry) for key in entry.reads}
    waiting = [_with_copies(entry, body, copies, others) for entry in entries]
    made = {key for entry in entries for key in entry.writes}
    result: list[Entry] = [copy for key, copy in copies.items() if key not in made]
    for entry in waiting:
        result += [entry, *(copies[key] for key in entry.writes if key in copies)]
    return result


def _waits(entry: Entry) -> TypeGuard[CollectiveMatmul]:
    return isinstance(entry, CollectiveMatmul) and entry.waits


def _with_copies(
    entry: Entry, body: Body, copies: dict[str, ComputeNode], others: Collection[str]
) -> Entry:
    """others: what is read by entries that do not wait."""
    if not _waits(entry):
        return entry
    if not body.over(entry.collective.axes).gathers_at_once:
        return entry
    node, buffers, scattered = entry.compute, body.buffers, entry.collective.dim
    reads = list(node.reads)
    for key, tensor in zip(node.reads[:2], node.op.inputs[:2], strict=True):
        if key in others and _is_turned(buffers[key], scattered):
            turned = f"{key} turned"
            buffers[turned] = buffers[key]
            copies[key] = turned_copy(turned, tensor, node.phase, key, turned, buffers)
            reads.append(turned)
    return replace(entry, compute=replace(node, reads=tuple(reads)))


def _is_turned(buffer: Buffer, scattered: str) -> bool:
    others = [dim for dim in buffer.local.dims if dim != "batch" and not is_sequence(dim)]
    return scattered in others or len(others) > 1
