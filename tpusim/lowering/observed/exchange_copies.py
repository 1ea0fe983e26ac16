"""Copies around all-to-alls: an exchange leaves pieces in an order that no reader takes.

An all-to-all sends one piece to each device of its group, one after the other in memory, and leaves
the received pieces in the order of the senders. A matmul has its tensors in the order of its
dimensions.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import TypeGuard

from tpusim.base.phase import Phase
from tpusim.graph import Gather, Pointwise, Scatter, Tensor, TokenRouting, is_sequence, plain_dim
from tpusim.lowering.body_entries import Entry, PlannedCollective
from tpusim.lowering.decisions import Body, LoweringDecisions
from tpusim.partition import HEADS, Buffer, CollectiveNode, ComputeNode
from tpusim.plan import Axes
from tpusim.program import CollectiveKind


def copy_exchanges(entries: Sequence[Entry], body: Body) -> list[Entry]:
    """Insert a pass through HBM wherever an exchange of slots needs a copy.

    Between matmuls (a mask): before the exchange where the dimension that it brings together has
    more than one element, which is then outside of the pieces; and after it where the dimension
    that it parts has, too. With b sequences and e experts per chip, that is in the dispatch
    for b > 1, in the combine for e > 1, and after both for b > 1 and e > 1: so all 35 exchanges
    of slots, of their results and of the slots' gradients in layers with a mask (libtpu 0.0.42.1;
    embed 4096, mlp 14336, E=8 with b, e = 2, 2 on v6e 4x4, with MaxText's flags too, and on v5p
    4x4x4, 2, 1 on v6e 16x16 and 1, 2 on v5e 4x4; mlp 8192, E=16, 1, 1 on v5e 4x4; embed 2048, E=64,
    1, 4 on v5e 4x4). Gradients of results are turned besides in three of these seven programs, as
    their matmul has the embedding first; that is not counted.

    What is sorted is gathered in the order of the senders, and sorted again among the experts of
    the device that has them: after the dispatch and before the combine (MaxText's moe.py,
    `local_permute`). A ragged all-to-all moves rows in two pieces, so they are copied besides, on
    the same side (all 24 exchanges of four programs on v5e, v5p and 7x; libtpu 0.0.42.1).
    """
    sorted_keys = {
        key
        for entry in entries
        if isinstance(entry, ComputeNode) and isinstance(entry.op, TokenRouting)
        for key in (*entry.reads, *entry.writes)
    }
    buffers = body.buffers
    result: list[Entry] = []
    for entry in entries:
        if not _exchanges_slots(entry):
            result.append(entry)
            continue
        (collective,) = entry.collectives
        by_sort = not sorted_keys.isdisjoint((*collective.reads, *collective.writes))
        sides = _of_sort(collective, buffers) if by_sort else _of_matmuls(collective, body)
        name = "sort" if by_sort else "relayout"
        for one in copied(entry, (sides,), name, buffers):
            if by_sort and isinstance(one, PlannedCollective):
                result.extend(copied(one, (sides,), "pieces", buffers))
            else:
                result.append(one)
    return result


def copy_head_exchanges(entries: Sequence[Entry], body: Body) -> list[Entry]:
    """Insert a pass through HBM after each all-to-all of an attention kernel's tensors.

    All four forward and all eight backward have one in a compiled program of 32 heads and 8 K/V
    heads over 4 devices (sequences of 32,768, v6e 4x4, libtpu 0.0.42.1), besides the copies into
    the kernel's layout and out of it.
    """
    result: list[Entry] = []
    for entry in entries:
        if _exchanges_heads(entry):
            result.extend(copied(entry, repeat((False, True)), "turn", body.buffers))
        else:
            result.append(entry)
    return result


def copy_row_exchanges(entries: Sequence[Entry], body: Body) -> list[Entry]:
    """Insert a pass through HBM after each all-to-all of a table's rows, and before a gradient's.

    Rows come from the devices of the columns, one device after the other; a token has all columns
    together. Of lookups of compiled plans on v2 to 7x, the rows are copied after the exchange in
    111 of 118; their gradients before it in 82 of 93, and after it in 70 (libtpu 0.0.42.1).
    """
    lookups = [entry for entry in entries if isinstance(entry, ComputeNode)]
    made = {key for entry in lookups if isinstance(entry.op, Gather) for key in entry.writes}
    added = {key for entry in lookups if isinstance(entry.op, Scatter) for key in entry.reads}
    result: list[Entry] = []
    for entry in entries:
        if not (isinstance(entry, PlannedCollective) and _exchanged_dims(entry)):
            result.append(entry)
        elif not made.isdisjoint(entry.reads):
            result.extend(copied(entry, repeat((False, True)), "rows", body.buffers))
        elif not added.isdisjoint(entry.writes):
            result.extend(copied(entry, repeat((True, True)), "rows", body.buffers))
        else:
            result.append(entry)
    return result


def _exchanges_slots(entry: Entry) -> TypeGuard[PlannedCollective]:
    """Return True if slots go from the devices of tokens to those of experts, or back."""
    dims = _exchanged_dims(entry)
    return "expert" in dims and "slot" in dims and not any(map(is_sequence, dims))


def _exchanges_heads(entry: Entry) -> TypeGuard[PlannedCollective]:
    dims = _exchanged_dims(entry)
    return not dims.isdisjoint(HEADS) and any(map(is_sequence, dims))


def _exchanged_dims(entry: Entry) -> frozenset[str]:
    """Return the dimensions of the tensor of an all-to-all; none for any other entry."""
    if isinstance(entry, PlannedCollective):
        first = entry.collectives[0]
        if first.kind is CollectiveKind.ALL_TO_ALL:
            return frozenset(map(plain_dim, first.payload.dims))
    return frozenset()


def _of_matmuls(collective: CollectiveNode, body: Body) -> tuple[bool, bool]:
    """Return True for a copy before it, and for one after it: see `copy_exchanges`."""
    before, after = (
        body.buffers[key].local.split() for key in (collective.reads[0], collective.writes[0])
    )
    joined = next(dim for dim in before if len(before[dim]) > len(after[dim]))
    parted = next(dim for dim in before if len(before[dim]) < len(after[dim]))
    several = body.ask(_has_several, joined, before[joined])
    return several, several and body.ask(_has_several, parted, after[parted])


def _has_several(decisions: LoweringDecisions, dim: str, axes: Axes) -> bool:
    """Return True if a device has more than one element of a dimension."""
    return bool(decisions.sizes.extent(dim, axes) > 1)


def _of_sort(collective: CollectiveNode, buffers: Mapping[str, Buffer]) -> tuple[bool, bool]:
    """Return True if the sending device has the experts, and if the receiving one does."""
    there = bool(buffers[collective.writes[0]].local.split()["expert"])
    return not there, there


def copied(
    entry: PlannedCollective,
    sides: Iterable[tuple[bool, bool]],
    name: str,
    buffers: dict[str, Buffer],
) -> tuple[Entry, ...]:
    """Return a collective with passes through HBM before and after it.

    sides: for each of its tensors, whether it is copied before it, and after it.

    The copies are added to `buffers`.
    """
    before: list[Entry] = []
    after: list[Entry] = []
    moved: list[CollectiveNode] = []
    for collective, (copies, turns) in zip(entry.collectives, sides, strict=False):
        (source,), (made,) = collective.reads, collective.writes
        sent = _copy_of(source, name, "sent", buffers) if copies else source
        came = _copy_of(made, name, "as it came", buffers) if turns else made
        moved.append(replace(collective, reads=(sent,), writes=(came,)))
        if copies:
            before.append(_pass(f"{name}/{sent}", collective, source, sent, buffers))
        if turns:
            after.append(_pass(f"{name}/{made}", collective, came, made, buffers))
    return (*before, replace(entry, collectives=tuple(moved)), *after)


def _copy_of(key: str, name: str, which: str, buffers: dict[str, Buffer]) -> str:
    copy = f"{key} {name} {which}"
    buffers[copy] = buffers[key]
    return copy


def _pass(
    name: str, collective: CollectiveNode, source: str, made: str, buffers: Mapping[str, Buffer]
) -> ComputeNode:
    tensor = Tensor(collective.tensor, buffers[source].local.dims, dtype=collective.dtype)
    return turned_copy(name, tensor, collective.phase, source, made, buffers)


def turned_copy(
    name: str, tensor: Tensor, phase: Phase, source: str, made: str, buffers: Mapping[str, Buffer]
) -> ComputeNode:
    """Return a copy in another order, which cannot be written over its operand.

    tensor: what the buffer `source` has.
    """
    local = buffers[source].local
    turned = replace(tensor, name=f"{tensor.name} turned")
    group = Pointwise(
        f"{tensor.name}/turn",
        (tensor,),
        (turned,),
        0.0,
        over=local.dims[-1:],
        keeps="",
        alone=True,
        phase=phase,
    )
    split = tuple((dim, axes) for dim, axes in local.split().items() if axes)
    return ComputeNode(name=name, op=group, split=split, reads=(source,), writes=(made,))
