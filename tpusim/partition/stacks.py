"""What a loop puts on its stacks and takes from them: copies that the core makes itself.

In compiled programs (plain language models of 130M to 7B parameters on v5e and v5p, libtpu
0.0.42.1) the product that makes a saved tensor writes it to its stack in place, and so does a group
that makes what its linearisation reads. What comes from elsewhere is copied: the input of a layer,
which the trip before left, and what a kernel or another group made. The backward loop slices each
tensor from its stack into a buffer of its own (see `Nest.copied`), and copies the gradients of its
layer's weights, once they are reduced, to stacks that were cleared before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

from tpusim.graph import Einsum, Pointwise, Tensor
from tpusim.partition.offload import leaving
from tpusim.partition.sizes import DTYPE_BYTES, Sizes
from tpusim.partition.template import Calc, Nest, Node
from tpusim.partition.work import Buffers, buffer_bytes
from tpusim.phase import Phase
from tpusim.program import (
    Alloc,
    Collective,
    Compute,
    Dep,
    Op,
    Transfer,
    TransferKind,
    Vector,
)


def with_stacks(
    nest: Nest, body: tuple[Op, ...], sizes: Sizes, buffers: Buffers, grad_dtype: str,
    arriving: Mapping[str, tuple[Dep, ...]],
) -> tuple[Op, ...]:  # fmt: skip
    """The body of a loop between the copies from its stacks and those to them.

    A saved tensor is copied before the first operation that reads it, which gives it its buffer.
    What no product writes in place is copied for the host too, before its transfer; what comes from
    there is copied as out of a stack, and `arriving` is what such a copy waits for. Gradients are
    stacked in `grad_dtype`.
    """
    in_place = {key for node in nest.body if _writes_in_place(node) for key in node.writes}
    saved = zip(nest.scan.saves, nest.saves, strict=True)
    ops = list(body)
    for tensor, key in reversed(nest.copied):
        load = _copy("load", Phase.BACKWARD, tensor, key, sizes, buffers)
        _insert(ops, replace(load, deps=arriving.get(key, ())), key)
    for tensor, key in saved:
        if key not in in_place:
            save = _copy("save", nest.scan.phase, tensor, key, sizes, buffers)
            _save(ops, save, tensor, key, _last_use(nest, ops, key))
    return (*ops, *_gradients(nest, sizes, buffers, grad_dtype))


def _last_use(nest: Nest, ops: Sequence[Op], key: str) -> int:
    """The place behind the last operation that reads or makes a buffer."""
    names = {
        node.name for node in nest.body
        if isinstance(node, Calc) and key in (*node.reads, *node.writes)
    }  # fmt: skip
    return max((i + 1 for i, op in enumerate(ops) if op.name in names), default=len(ops))


def _save(ops: list[Op], save: Compute, tensor: Tensor, key: str, place: int) -> None:
    """Put the copy of a saved tensor at its place, or before its transfer to the host.

    The transfer then waits for the copy, which takes the buffer that it reads.
    """
    name = f"{TransferKind.TO_HOST}/{tensor.name}"
    for at, op in enumerate(ops):
        if isinstance(op, Transfer) and op.name == name:
            ops[at] = replace(op, deps=(*op.deps, Dep(save.name)))
            taken = _taken_over(ops, _holder(ops, leaving(key)), leaving(key))
            ops.insert(at, replace(save, allocs=taken))
            return
    ops.insert(place, save)


def _insert(ops: list[Op], load: Compute, key: str) -> None:
    """Put the copy of a buffer before the operation that takes the buffer, and let it take it.

    What comes from the host has its buffer by then: its copy follows the transfers that start.
    """
    holder = _holder(ops, key)
    started = len([*takewhile(lambda op: isinstance(op, Transfer), ops)])
    taken = _taken_over(ops, holder, key)
    ops.insert(started if holder is None else holder, replace(load, allocs=taken))


def _holder(ops: Sequence[Op], name: str) -> int | None:
    """The place of the operation of the core, or of the collective, that takes a buffer."""
    for place, op in enumerate(ops):
        if isinstance(op, Compute | Collective) and any(a.tensor == name for a in op.allocs):
            return place
    return None


def _taken_over(ops: list[Op], holder: int | None, name: str) -> tuple[Alloc, ...]:
    """The allocation of a buffer, no longer that of the operation at the place `holder`."""
    op = None if holder is None else ops[holder]
    if holder is None or not isinstance(op, Compute | Collective):
        return ()
    ops[holder] = replace(op, allocs=tuple(a for a in op.allocs if a.tensor != name))
    return tuple(alloc for alloc in op.allocs if alloc.tensor == name)


def _gradients(nest: Nest, sizes: Sizes, buffers: Buffers, grad_dtype: str) -> tuple[Compute, ...]:
    """The copy of a layer's gradients to their stacks: one read, and two writes with the clearing.

    It waits for none of them: those that are reduced beside the core are copied a trip later.
    """
    made = [buffers[key] for _, key in nest.gradients]
    if not made:
        return ()
    read = sum(buffer_bytes(buffer, sizes) for buffer in made)
    elements = sum(buffer_bytes(b, sizes) / sizes.itemsize(b.dtype) for b in made)
    return (
        Compute(
            name=f"stack/{nest.scan.name}", phase=Phase.BACKWARD, scope="gradients",
            work=Vector(read, 2 * elements * DTYPE_BYTES[grad_dtype], 0.0),
        ),
    )  # fmt: skip


def _writes_in_place(node: Node) -> bool:
    if not isinstance(node, Calc):
        return False
    if isinstance(node.op, Einsum):
        return not node.op.ragged
    return isinstance(node.op, Pointwise) and node.op.taped


def _copy(
    way: str, phase: Phase, tensor: Tensor, key: str, sizes: Sizes, buffers: Buffers
) -> Compute:
    held = buffer_bytes(buffers[key], sizes)
    stacked = held / sizes.itemsize(buffers[key].dtype) * sizes.itemsize(tensor.saved_dtype)
    return Compute(
        name=f"{way}/{key}", phase=phase, scope=tensor.name, work=Vector(held, stacked, 0.0)
    )
