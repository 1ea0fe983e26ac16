"""Results that take no buffer of their own, as the matmuls around them are fused with them."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, cast

from tpusim.base.phase import Phase
from tpusim.base.same import Same
from tpusim.graph import Convolution, Einsum, Pointwise, TensorRole, plain_dim
from tpusim.lowering.body_entries import UNROLLED_RING, CollectiveMatmul, Entry, carriers
from tpusim.partition import ComputeNode
from tpusim.plan import Axes
from tpusim.program import Number


class FusedResults(NamedTuple):
    """Results of a body that may take no buffer of their own.

    groups: of element-wise groups whose readers can compute them, each with the group's operands;
        it is fused if it is as large as one of these.
    again: those of recomputation, which are fused if it is as large as one alone.
    inlined: those that are fused of whatever size, see `Pointwise.inlined`.
    rings: of these, the axes of each ring that reads them.
    terms: of matmuls that are added to an earlier one, each with the first.
    """

    groups: Mapping[str, tuple[str, ...]]
    again: frozenset[str]
    inlined: frozenset[str]
    rings: Mapping[str, frozenset[Axes]]
    terms: Mapping[str, str]

    def in_readers(
        self, size: Callable[[str], Number], devices: Callable[[Axes], Number]
    ) -> dict[str, tuple[str, ...]]:
        """Return the results that their readers compute, each with the operands of its group.

        size: bytes of a buffer.
        devices: number of devices over axes.
        """

        def fits(key: str, operands: tuple[str, ...]) -> bool:
            large = sum(bool(size(operand) == size(key)) for operand in operands)
            rings = self.rings.get(key, ())
            return (large == 1 or (large > 1 and key not in self.again)) and all(
                bool(devices(axes) <= UNROLLED_RING) for axes in rings
            )

        return {
            key: operands
            for key, operands in self.groups.items()
            if key in self.inlined or fits(key, operands)
        }


def fused_results(entries: Sequence[Entry], kept: Collection[str]) -> FusedResults:
    """Return the results of a body that may be fused. kept: buffers that outlive the body."""
    return _known(Same(entries), frozenset(kept))


@lru_cache(maxsize=256)
def _known(held: Same, kept: frozenset[str]) -> FusedResults:
    entries = cast(tuple[Entry, ...], held.objects)
    readers = _readers(entries)
    fused = _groups(entries, kept, readers)
    groups = {key: group.reads for key, group in fused.items()}
    inlined = frozenset(key for key, group in fused.items() if _is_inlined(group))
    again = {key for entry in entries if entry.phase is Phase.RECOMPUTE for key in entry.writes}
    rings = {
        key: frozenset(e.collective.axes for e in readers[key] if isinstance(e, CollectiveMatmul))
        for key in groups
    }
    return FusedResults(
        groups, frozenset(again & groups.keys()), inlined, rings, _terms(entries, kept, readers)
    )


def _groups(
    entries: Sequence[Entry], kept: Collection[str], readers: Mapping[str, Sequence[Entry]]
) -> dict[str, ComputeNode]:
    """Return the results of element-wise groups that their readers can compute, with the groups.

    XLA fuses an element-wise group, or the last pass of a norm or of the loss's gradient, with each
    matmul that reads it, so that its operands live on in its place. This needs that only matmuls of
    weights and for their gradients read it, and that it is as large as an operand. So
    programs without a ring for the head's gradient hold no gradient of the logits (at least 187 of
    222 compiled plans; of 12 of the others, 4 do), and those with one do (110 of 110; libtpu
    0.0.42.1), unless it is over 4 devices, as a ring's two steps are then unrolled and no loop is
    left (14 of 14: the matmuls of `fusion.385` and `fusion.387`, fsdp 4 x tensor 4 on v6e 4x4).

    A result of recomputation is such a group where one operand alone is as large as it: a norm, or
    an activation function after a bias in the epilogue of a matmul. With two, as in a gated MLP, it
    is written, and so is what single elements are scattered into.
    """
    return {
        key: group
        for entry in entries
        for group in _element_wise(entry)
        for key in group.writes
        if key not in kept
        and key in entry.writes
        and key in readers
        and all(_computes(reader, key, group) for reader in readers[key])
    }


def _element_wise(entry: Entry) -> Iterator[ComputeNode]:
    """Yield the element-wise groups that may run in the readers of their results."""
    if not isinstance(entry, ComputeNode):
        return
    biased = isinstance(entry.op, Pointwise) or len(entry.epilogue) > 1
    fused = entry.epilogue and biased and entry.phase is not Phase.BACKWARD
    for part in entry.parts if fused else (entry,):
        group = _group(part)
        if group is None or group.alone or group.scatters:
            continue
        if {*entry.reads, *entry.writes}.issuperset(part.reads):
            yield part


def _computes(reader: Entry, key: str, group: ComputeNode) -> bool:
    """Return True for a reader of a group's result that can compute it."""
    if _multiplies(reader, key) or (_is_inlined(group) and _multiplying(reader, key)):
        return True
    if _is_of_loss(group) and (_convolves(reader, key) or _sums(reader)):
        return True
    normed, one = _group(group), _group(reader)
    if normed is None or not normed.after_sums or group.phase is not Phase.FORWARD:
        return False
    if isinstance(reader, ComputeNode) and reader.parts:
        return key not in reader.parts[0].reads
    return one is not None and one.element_wise


def _terms(
    entries: Sequence[Entry], kept: Collection[str], readers: Mapping[str, Sequence[Entry]]
) -> dict[str, str]:
    """Return the results of matmuls that are added to an earlier one, each with the first.

    The terms of a sum are added up in the epilogues of their matmuls, so they share a buffer. A
    matmul that carries a gather adds nothing (v5e 4x4 to 8x8, four programs; libtpu 0.0.42.1).
    """
    first: dict[int, str] = {}
    added: dict[str, str] = {}
    beside = carriers(entries)
    alone = {key for entry in entries if entry.name in beside for key in entry.writes}
    for key in _single_terms(entries, readers):
        if key not in kept and key not in alone:
            one = first.setdefault(id(readers[key][0]), key)
            if one != key:
                added[key] = one
    return added


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
    if isinstance(entry, CollectiveMatmul) and not entry.gathers:
        entry = entry.compute
    op = _multiplying(entry, key)
    if op is None:
        return False
    batched = set(op.lhs.dims) & set(op.rhs.dims) & set(op.output.dims)
    of_weight = any(tensor.role is TensorRole.PARAM for tensor in op.inputs)
    for_weight = not any(plain_dim(dim) == "batch" for dim in op.output.dims)
    return (of_weight or for_weight) and not batched


def _multiplying(entry: Entry, key: str) -> Einsum | None:
    """Return the matmul of an entry that multiplies `key`."""
    if isinstance(entry, ComputeNode) and isinstance(entry.op, Einsum):
        return entry.op if key in entry.reads[:2] else None
    return None


def _is_of_loss(group: ComputeNode) -> bool:
    """Return True for the gradient of a softmax over the classes, as a loss has of its logits.

    Convolutions compute it as matmuls do, and so does the sum for their bias (MetNet-2, whose
    logits are of 512 classes, on v4 and v6e; of a 3-D U-Net, whose loss has sums over the volume
    too, it is written on v5p; libtpu 0.0.42.1).
    """
    op = group.op
    if not isinstance(op, Pointwise) or len(group.writes) > 1 or group.phase is not Phase.BACKWARD:
        return False
    return bool(op.over) and op.over == op.main.dims[-1:]


def _convolves(entry: Entry, key: str) -> bool:
    convolution = isinstance(entry, ComputeNode) and isinstance(entry.op, Convolution)
    return convolution and key in entry.reads[:2]


def _sums(entry: Entry) -> bool:
    one = _group(entry)
    return one is not None and one.reduces


def _is_inlined(group: ComputeNode) -> bool:
    return isinstance(group.op, Pointwise) and group.op.inlined
