"""What a loop puts on its stacks and takes from them: copies that the core makes itself.

In compiled programs (plain language models of 130M to 7B parameters on v5e and v5p, libtpu
0.0.42.1) the product that makes a saved tensor writes it to its stack in place, and so does a group
that makes what its linearisation reads. What comes from elsewhere is copied: the input of a layer,
which the trip before left, and what a kernel or another group made. The backward loop slices each
tensor from its stack into a buffer of its own (see `Nest.copied`), and copies the gradients of its
layer's weights, once they are reduced, to stacks that were cleared before.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import takewhile

from tpusim.graph import Einsum, Pointwise, Tensor
from tpusim.partition.sizes import DTYPE_BYTES, Sizes
from tpusim.partition.template import Calc, Nest, Node
from tpusim.partition.work import Buffers, buffer_bytes
from tpusim.phase import Phase
from tpusim.program import Collective, Compute, Dep, Op, Transfer, Vector


def with_stacks(
    nest: Nest, body: tuple[Op, ...], sizes: Sizes, buffers: Buffers, grad_dtype: str,
    arriving: Mapping[str, tuple[Dep, ...]],
) -> tuple[Op, ...]:  # fmt: skip
    """The body of a loop between the copies from its stacks and those to them.

    A saved tensor is copied before the first operation that reads it, which gives it its buffer.
    What goes to the host is taken to be copied too: the transfer reads a buffer of its own, and
    writes one; those for the next trip start first. `arriving` is what the copy of a buffer from
    the host waits for. Gradients are stacked in `grad_dtype`.
    """
    in_place = {key for node in nest.body if _writes_in_place(node) for key in node.writes}
    saved = zip(nest.scan.saves, nest.saves, strict=True)
    ops = list(body)
    for tensor, key in reversed(nest.copied):
        load = _copy("load", Phase.BACKWARD, tensor, key, sizes, buffers)
        _insert(ops, replace(load, deps=arriving.get(key, ())), key)
    return (
        *ops,
        *(
            _copy("save", Phase.FORWARD, tensor, key, sizes, buffers)
            for tensor, key in saved
            if key not in in_place
        ),
        *_gradients(nest, sizes, buffers, grad_dtype),
    )  # fmt: skip


def _insert(ops: list[Op], load: Compute, key: str) -> None:
    """Put the copy of a buffer before the operation that takes the buffer, and let it take it.

    What comes from the host has its buffer by then: its copy follows the transfers that start.
    """
    for place, op in enumerate(ops):
        if not isinstance(op, Compute | Collective):
            continue
        taken = tuple(alloc for alloc in op.allocs if alloc.tensor == key)
        if taken:
            others = tuple(alloc for alloc in op.allocs if alloc.tensor != key)
            ops[place] = replace(op, allocs=others)
            ops.insert(place, replace(load, allocs=taken))
            return
    ops.insert(len([*takewhile(lambda op: isinstance(op, Transfer), ops)]), load)


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
    return isinstance(node.op, Einsum) or (isinstance(node.op, Pointwise) and node.op.taped)


def _copy(
    way: str, phase: Phase, tensor: Tensor, key: str, sizes: Sizes, buffers: Buffers
) -> Compute:
    held = buffer_bytes(buffers[key], sizes)
    stacked = held / sizes.itemsize(buffers[key].dtype) * sizes.itemsize(tensor.saved_dtype)
    return Compute(
        name=f"{way}/{key}", phase=phase, scope=tensor.name, work=Vector(held, stacked, 0.0)
    )
