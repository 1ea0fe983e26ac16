"""Element-wise groups of operations on images: what they make and read."""

from collections.abc import Collection, Sequence

from tpusim.graph import Pointwise
from tpusim.partition import IMAGE_DIMS, Arrangement, ComputeNode


def made_by(
    groups: Sequence[Pointwise], names: Collection[str]
) -> tuple[tuple[Pointwise, ...], set[str]]:
    """Return the groups that make tensors, in order, and all that they read, with `names`."""
    needed: list[Pointwise] = []
    read = set(names)
    for group in reversed(groups):
        if any(tensor.name in read for tensor in group.outputs):
            needed.append(group)
            read |= {tensor.name for tensor in group.inputs}
    return tuple(reversed(needed)), read


def operands(node: ComputeNode) -> set[str]:
    """Return the names of the tensors that an operation reads, without its epilogue's."""
    return {tensor.name for tensor in node.op.inputs}


def beside(node: ComputeNode) -> set[str]:
    """Return the names of the tensors that the epilogue of an operation reads."""
    return {tensor.name for group in node.epilogue for tensor in group.inputs}


def arrangement_of(node: ComputeNode, spare: int) -> Arrangement:
    """Return the arrangement of a group whose images are cut, under all names of the dimension."""
    groups = (*node.generated, node.op, *node.epilogue)
    tensors = [t for group in groups for t in (*group.inputs, *group.outputs)]
    dims = dict.fromkeys(t.dims[-2] for t in tensors if len(t.dims) >= IMAGE_DIMS)
    return Arrangement(tuple((dim, spare) for dim in dims))


def by_example(group: Pointwise) -> bool:
    """Return True for statistics of each example: they have the dimension of the batch."""
    first = group.main.dims[0]
    return any(first in t.dims for t in (group.outputs if group.sums else group.inputs[-1:]))
