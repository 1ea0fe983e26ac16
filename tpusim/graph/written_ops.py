"""The operations that a writer has written: their names, and what a body reads of outside."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from tpusim.base.errors import ModelError
from tpusim.graph.ops import Op, Scan
from tpusim.graph.tensor import Tensor, TensorRole


def check_names(model: str, ops: Sequence[Op]) -> None:
    """Raise ModelError for two operations, or two results, of one name."""
    every = tuple(_with_bodies(ops))
    for name, times in Counter(op.name for op in every).items():
        if times > 1:
            raise ModelError(
                f"{model} writes {name} {times} times; write each in a scope of its own, "
                "w.scope(...)"
            )
    makers: dict[str, str] = {}
    for op in every:
        for tensor in op.outputs:
            other = makers.setdefault(tensor.name, op.name)
            if other != op.name:
                raise ModelError(
                    f"{model}: {other} and {op.name} both make the tensor {tensor.name}; "
                    "give the result of one of them another name"
                )


def _with_bodies(ops: Iterable[Op]) -> Iterator[Op]:
    """Yield operations, and those in the bodies of scans."""
    for op in ops:
        yield op
        if isinstance(op, Scan):
            yield from _with_bodies(op.body)


def read_of_outside(ops: Sequence[Op], given: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Return what a body reads but neither makes nor is given, without weights and states."""
    own = {tensor.name for op in ops for tensor in op.outputs} | {tensor.name for tensor in given}
    kept = (TensorRole.PARAM, TensorRole.STATE)
    read = (tensor for op in ops for tensor in op.inputs if tensor.role not in kept)
    return tuple({tensor.name: tensor for tensor in read if tensor.name not in own}.values())
