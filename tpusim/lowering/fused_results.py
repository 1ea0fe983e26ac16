"""Results that take no buffer of their own, as the matmuls around them are fused with them."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, cast

from tpusim.base.phase import Phase
from tpusim.base.same import Same
from tpusim.graph import Einsum, Pointwise, TensorRole, is_sequence
from tpusim.lowering.body_entries import CollectiveMatmul, Entry
from tpusim.partition import ComputeNode
from tpusim.plan import Axes
from tpusim.program import Number

UNROLLED_RING = 4
"""Devices of the largest ring whose two steps are no loop of the program."""


class FusedGroup(NamedTuple):
    """An element-wise group that its readers may compute: its operands, and the readers' rings."""

    operands: tuple[str, ...]
    rings: tuple[Axes, ...]


class FusedResults(NamedTuple):
    """Results of a body that may take no buffer of their own.

    groups: of element-wise groups whose readers can compute them; one is fused if it is as large as
        one of its operands, and no ring that reads it is a loop.
    terms: of matmuls that are added to an earlier one, each with the first.
    """

    groups: Mapping[str, FusedGroup]
    terms: Mapping[str, str]

    def in_readers(
        self, size: Callable[[str], Number], devices: Callable[[Axes], Number]
    ) -> dict[str, tuple[str, ...]]:
        """Return the results that their readers compute, each with the operands of its group.

        size: bytes of a buffer.
        devices: of a ring.
        """
        return {
            key: group.operands
            for key, group in self.groups.items()
            if any(bool(size(operand) == size(key)) for operand in group.operands)
            and all(bool(devices(axes) <= UNROLLED_RING) for axes in group.rings)
        }


def fused_results(entries: Sequence[Entry], kept: Collection[str]) -> FusedResults:
    """Return the results of a body that may be fused. kept: buffers that outlive the body."""
    return _known(Same(entries), frozenset(kept))


@lru_cache(maxsize=256)
def _known(held: Same, kept: frozenset[str]) -> FusedResults:
    entries = cast(tuple[Entry, ...], held.objects)
    readers = _readers(entries)
    return FusedResults(_groups(entries, kept, readers), _terms(entries, kept, readers))


def _groups(
    entries: Sequence[Entry], kept: Collection[str], readers: Mapping[str, Sequence[Entry]]
) -> dict[str, FusedGroup]:
    """Return the results of element-wise groups that their readers can compute.

    XLA fuses an element-wise group, or the last pass of a norm or of the loss's gradient, with each
    matmul that reads it, so that its operands live on in its place. This needs that only matmuls of
    weights and for their gradients read it, and that it is as large as an operand. So
    programs without a ring for the head's gradient hold no gradient of the logits (at least 187 of
    222 compiled plans; of 12 of the others, 4 do), and those with one do (110 of 110; libtpu
    0.0.42.1).

    Results of recomputation keep their buffers (layers of experts on v5p 4x4x4 hold them), and so
    does what single elements are scattered into.
    """
    return {
        key: FusedGroup(entry.reads, tuple(_rings(readers[key])))
        for entry in entries
        if (group := _group(entry)) is not None
        and not (group.alone or group.scatters)
        and entry.phase is not Phase.RECOMPUTE
        for key in entry.writes
        if key not in kept
        and key in readers
        and all(_multiplies(reader, key) for reader in readers[key])
    }


def _terms(
    entries: Sequence[Entry], kept: Collection[str], readers: Mapping[str, Sequence[Entry]]
) -> dict[str, str]:
    """Return the results of matmuls that are added to an earlier one, each with the first.

    The terms of a sum are added up in the epilogues of their matmuls, so they share a buffer.
    """
    first: dict[int, str] = {}
    added: dict[str, str] = {}
    for key in _single_terms(entries, readers):
        if key not in kept:
            one = first.setdefault(id(readers[key][0]), key)
            if one != key:
                added[key] = one
    return added


def _rings(entries: Sequence[Entry]) -> Iterator[Axes]:
    """Yield the axes of the rings among entries."""
    yield from (e.collective.axes for e in entries if isinstance(e, CollectiveMatmul))


def _single_terms(
    entries: Sequence[Entry], readers: Mapping[str, Sequence[Entry]]
) -> Iterator[str]:
    """Yield the results of matmuls that nothing but one sum reads, in order."""
    for entry in entries:
        if isinstance(entry, ComputeNode) and isinstance(entry.op, Einsum):
            for key in entry.writes if len(entry.writes) == 1 else ():
                reading = readers.get(key, ())
                if len(reading) == 1 and _is_sum(reading[0], key):
                    yield key


def _readers(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        for key in dict.fromkeys(entry.reads):
            found.setdefault(key, []).append(entry)
    return found


def _group(entry: Entry) -> Pointwise | None:
    """Return the element-wise group that an entry is, if it is one."""
    if isinstance(entry, ComputeNode) and isinstance(entry.op, Pointwise):
        return entry.op
    return None


def _is_sum(entry: Entry, key: str) -> bool:
    """Return True for a sum that has `key` as a term, alone or in the epilogue of a matmul."""
    group = _group(entry)
    if group is not None:
        return group.linear
    if not isinstance(entry, ComputeNode) or key in entry.reads[:2]:
        return False
    return bool(entry.epilogue) and entry.epilogue[0].linear


def _multiplies(entry: Entry, key: str) -> bool:
    """Return True for a matmul of a weight, or for its gradient, that has `key` as an operand.

    It is one operation, without batch. Masks that pick tokens for experts are no weights.
    """
    compute = entry.compute if isinstance(entry, CollectiveMatmul) else entry
    if not (isinstance(compute, ComputeNode) and isinstance(compute.op, Einsum)):
        return False
    op = compute.op
    batched = set(op.lhs.dims) & set(op.rhs.dims) & set(op.output.dims)
    of_weight = any(tensor.role is TensorRole.PARAM for tensor in op.inputs)
    for_weight = not any(map(is_sequence, op.output.dims))
    return (of_weight or for_weight) and not batched and key in compute.reads[:2]
