"""Copies between a loop's stacks and its body, made by the core.

In compiled programs (plain language models of 130M to 7B parameters on v5e and v5p, libtpu
0.0.42.1) the matmul that makes a saved tensor writes it to its stack in place, and so does a group
that makes what its linearisation reads. What comes from elsewhere is copied: the input of a layer,
which the iteration before left, and what a kernel or another group made. The backward loop slices
each tensor from its stack into a buffer of its own (see `LoopNode.copied`), and copies the
gradients of its weights, once they are reduced, to stacks that were cleared before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

from tpusim.base.phase import Phase
from tpusim.graph import Einsum, Pointwise, Tensor
from tpusim.lowering.offload import leaving_copy
from tpusim.lowering.op_work import Buffers, buffer_bytes
from tpusim.partition import DTYPE_BYTES, ComputeNode, LoopNode, Node, Sizes
from tpusim.program import (
    Alloc,
    Collective,
    Compute,
    Dep,
    Loop,
    Op,
    Transfer,
    TransferKind,
    VectorWork,
)

_HOLDERS = Compute | Collective | Loop


def with_stacks(
    loop_node: LoopNode,
    body: tuple[Op, ...],
    sizes: Sizes,
    buffers: Buffers,
    grad_dtype: str,
    arriving: Mapping[str, tuple[Dep, ...]],
) -> tuple[Op, ...]:
    """Return the body of a loop with the copies from its stacks and to them.

    A saved tensor is copied before the first operation that reads it, which gives it its buffer.
    What no matmul writes in place is copied for the host too, before its transfer; what comes from
    there is copied as out of a stack, and `arriving` is what such a copy waits for. Gradients are
    stacked in `grad_dtype`.
    """
    in_place = {key for node in loop_node.body if _writes_in_place(node) for key in node.writes}
    saved = zip(loop_node.scan.saves, loop_node.saves, strict=True)
    ops = list(body)
    for tensor, key in reversed(loop_node.copied):
        load = _copy("load", Phase.BACKWARD, tensor, key, sizes, buffers)
        _insert(ops, replace(load, deps=arriving.get(key, ())), key)
    for tensor, key in saved:
        if key not in in_place:
            save = _copy("save", loop_node.scan.phase, tensor, key, sizes, buffers)
            _save(ops, save, tensor, key, _last_use(loop_node, ops, key))
    return (*ops, *_gradients(loop_node, sizes, buffers, grad_dtype))


def stack_copies(
    loop_node: LoopNode, sizes: Sizes, buffers: Buffers, grad_dtype: str
) -> tuple[Compute, ...]:
    """Return the copies alone that `with_stacks` inserts."""
    in_place = {key for node in loop_node.body if _writes_in_place(node) for key in node.writes}
    loads = (_copy("load", Phase.BACKWARD, *each, sizes, buffers) for each in loop_node.copied)
    saves = (
        _copy("save", loop_node.scan.phase, tensor, key, sizes, buffers)
        for tensor, key in zip(loop_node.scan.saves, loop_node.saves, strict=True)
        if key not in in_place
    )
    return (*loads, *saves, *_gradients(loop_node, sizes, buffers, grad_dtype))


def _last_use(loop_node: LoopNode, ops: Sequence[Op], key: str) -> int:
    """Return the place after the last operation that reads or makes a buffer."""
    names = {
        node.name
        for node in loop_node.body
        if isinstance(node, ComputeNode) and key in (*node.reads, *node.writes)
    }
    return max((i + 1 for i, op in enumerate(ops) if op.name in names), default=len(ops))


def _save(ops: list[Op], save: Compute, tensor: Tensor, key: str, place: int) -> None:
    """Put the copy of a saved tensor at its place, or before its transfer to the host.

    The transfer then waits for the copy, which takes the buffer that it reads.
    """
    name = f"{TransferKind.TO_HOST}/{tensor.name}"
    for at, op in enumerate(ops):
        if isinstance(op, Transfer) and op.name == name:
            ops[at] = replace(op, deps=(*op.deps, Dep(save.name)))
            taken = _taken_over(ops, _holder(ops, leaving_copy(key)), leaving_copy(key))
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
    """Return the place of the operation that allocates a buffer, but for transfers."""
    for place, op in enumerate(ops):
        if isinstance(op, _HOLDERS) and any(a.tensor == name for a in op.allocs):
            return place
    return None


def _taken_over(ops: list[Op], holder: int | None, name: str) -> tuple[Alloc, ...]:
    """Take the allocation of a buffer from the operation at the place `holder`, and return it."""
    op = None if holder is None else ops[holder]
    if holder is None or not isinstance(op, _HOLDERS):
        return ()
    ops[holder] = replace(op, allocs=tuple(a for a in op.allocs if a.tensor != name))
    return tuple(alloc for alloc in op.allocs if alloc.tensor == name)


def _gradients(
    loop_node: LoopNode, sizes: Sizes, buffers: Buffers, grad_dtype: str
) -> tuple[Compute, ...]:
    """Return the copy of a layer's gradients to their stacks: a read, two writes with the clearing.

    It waits for none of them: those that are reduced beside the core are copied an iteration
    later. A loop of one iteration is none when it is compiled, and needs no stacks (a stage of one
    layer, v6e 4x4).
    """
    made = [buffers[key] for _, key in loop_node.gradients]
    if not made or loop_node.scan.trips == 1:
        return ()
    read = sum(buffer_bytes(buffer, sizes) for buffer in made)
    elements = sum(buffer_bytes(b, sizes) / sizes.itemsize(b.dtype) for b in made)
    return (
        Compute(
            name=f"stack/{loop_node.scan.name}",
            phase=Phase.BACKWARD,
            scope="gradients",
            work=VectorWork(read, 2 * elements * DTYPE_BYTES[grad_dtype], 0.0),
        ),
    )


def _writes_in_place(node: Node) -> bool:
    if not isinstance(node, ComputeNode):
        return False
    if isinstance(node.op, Einsum):
        return not node.op.ragged
    return isinstance(node.op, Pointwise) and node.op.writes_residuals


def _copy(
    direction: str, phase: Phase, tensor: Tensor, key: str, sizes: Sizes, buffers: Buffers
) -> Compute:
    held = buffer_bytes(buffers[key], sizes)
    stacked = held / sizes.itemsize(buffers[key].dtype) * sizes.itemsize(tensor.saved_dtype)
    return Compute(
        name=f"{direction}/{key}",
        phase=phase,
        scope=tensor.name,
        work=VectorWork(held, stacked, 0.0),
    )
