"""What the forward pass keeps, and what the backward pass therefore computes again.

Given the tensors that are saved, the recomputation is the set of forward operations that the
backward pass still needs, found by reachability: an operation whose results nobody reads again
(a layer's last projection) falls away by itself.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from tpusim.errors import PlanError, nearest
from tpusim.graph.ops import Op
from tpusim.graph.pointwise import Pointwise
from tpusim.graph.products import Einsum
from tpusim.graph.tensor import Role, Tensor
from tpusim.phase import Phase

LAYER_IN = "layer_in"
"""The input of a layer, which every policy saves."""

POLICIES = ("full", "minimal", "dots", "none")


@dataclass(frozen=True, slots=True)
class Remat:
    """A rematerialisation policy, and tensors that are saved besides.

    full: only the input of each layer is saved. minimal: also the outputs of products with a
    weight (JAX's `dots_with_no_batch_dims_saveable`). dots: the outputs of all products.
    none: all that the backward pass reads, as no checkpoint holds differentiation back from what
    it keeps of each group (`Pointwise.tape`). offload: tensors that are saved on the host.
    """

    policy: str = "full"
    save: tuple[str, ...] = ()
    offload: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise PlanError(
                f"remat is {self.policy!r}, which is not a policy: {nearest(self.policy, POLICIES)}"
            )

    def keeps(self, op: Op, tensor: Tensor) -> bool:
        """Whether `tensor`, made by `op`, is saved for the backward pass."""
        if self.policy == "none" or tensor.short in (LAYER_IN, *self.save, *self.offload):
            return True
        if not isinstance(op, Einsum):
            return False
        with_weight = any(operand.role is Role.PARAM for operand in op.inputs)
        return self.policy == "dots" or (self.policy == "minimal" and with_weight)

    def recorded(self, op: Op) -> Op:
        """The operation with the results that differentiation keeps of it."""
        if self.policy == "none" and isinstance(op, Pointwise) and op.tape:
            return op.with_tape()
        return op


def recompute(
    body: tuple[Op, ...], backward: Iterable[Op], keeps: Callable[[Op, Tensor], bool]
) -> tuple[tuple[Op, ...], tuple[Tensor, ...]]:
    """The forward operations to run again before `backward`, and the tensors to save for both."""
    maker = {tensor.name: op for op in body for tensor in op.outputs}
    wanted = [t for op in backward for t in op.inputs if t.role is Role.ACTIVATION]
    again: set[str] = set()
    saved: dict[str, Tensor] = {}
    while wanted:
        tensor = wanted.pop()
        op = maker.get(tensor.name)
        if op is None or keeps(op, tensor):
            saved.setdefault(tensor.name, tensor)
        elif op.name not in again:
            again.add(op.name)
            wanted.extend(t for t in op.inputs if t.role is Role.ACTIVATION)
    ops = tuple(replace(op, phase=Phase.RECOMPUTE) for op in body if op.name in again)
    return ops, tuple(saved[name] for name in sorted(saved))


def check_saved_names(remat: Remat, tensors: Iterable[Tensor]) -> None:
    """Raise when a list of saved tensors names one that no layer makes; weights are always kept."""
    known = {tensor.short for tensor in tensors if tensor.role is Role.ACTIVATION}
    for which, names in (("save", remat.save), ("offload", remat.offload)):
        for name in names:
            if name not in known:
                raise PlanError(
                    f"plan.{which} lists {name!r}, which is no activation of a layer: "
                    f"{nearest(name.rsplit('/', 1)[-1], known)}"
                )
