"""Rematerialisation: the tensors that the forward pass saves, and those computed again.

Given the tensors that are saved, the recomputation is the set of forward operations that the
backward pass still needs, found by reachability: an operation whose results are not read again
(a layer's last projection) drops out by itself.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from tpusim.base.errors import PlanError, nearest
from tpusim.base.phase import Phase
from tpusim.base.value_checks import check_names, check_word
from tpusim.graph.contractions import Einsum
from tpusim.graph.ops import Op
from tpusim.graph.pointwise import Pointwise
from tpusim.graph.tensor import Tensor, TensorRole

LAYER_IN = "layer_in"
"""The input of a layer, which every policy saves."""

POLICIES = ("full", "minimal", "dots", "none")


@dataclass(frozen=True, slots=True)
class Remat:
    """A rematerialisation policy, and tensors that are saved besides.

    policy: `full` saves the input of each layer only; `minimal` also the outputs of matmuls with a
        weight (JAX's `dots_with_no_batch_dims_saveable`); `dots` the outputs of all matmuls; `none`
        all that the backward pass reads, as without a checkpoint (`Pointwise.residuals`).
    save: short names of further tensors that are saved.
    offload: short names of tensors that are saved on the host.
    """

    policy: str = "full"
    save: Sequence[str] = ()
    offload: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_word("plan.remat.policy", self.policy, POLICIES)
        for key in ("save", "offload"):
            check_names(f"plan.remat.{key}", getattr(self, key))
            object.__setattr__(self, key, tuple(getattr(self, key)))
        for name in self.offload:
            if name in self.save:
                raise PlanError(
                    f"{name!r} is in plan.remat.save and in plan.remat.offload; keep it in one: "
                    "save holds it in HBM, offload on the host"
                )

    def keeps(self, op: Op, tensor: Tensor) -> bool:
        """Return True if `tensor`, made by `op`, is saved for the backward pass."""
        if self.policy == "none" or tensor.short in (LAYER_IN, *self.save, *self.offload):
            return True
        if not isinstance(op, Einsum):
            return False
        with_weight = any(operand.role is TensorRole.PARAM for operand in op.inputs)
        return self.policy == "dots" or (self.policy == "minimal" and with_weight)

    def with_residuals(self, op: Op) -> Op:
        """Return the operation with the residuals that differentiation keeps of it."""
        if self.policy == "none" and isinstance(op, Pointwise) and op.residuals:
            return op.with_residuals()
        return op


def recompute(
    body: tuple[Op, ...], backward: Iterable[Op], keeps: Callable[[Op, Tensor], bool]
) -> tuple[tuple[Op, ...], tuple[Tensor, ...]]:
    """Return the forward operations to run again before `backward`, and the tensors to save."""
    maker = {tensor.name: op for op in body for tensor in op.outputs}
    wanted = [t for op in backward for t in op.inputs if t.role is TensorRole.ACTIVATION]
    again: set[str] = set()
    saved: dict[str, Tensor] = {}
    while wanted:
        tensor = wanted.pop()
        op = maker.get(tensor.name)
        if op is None or keeps(op, tensor):
            saved.setdefault(tensor.name, tensor)
        elif op.name not in again:
            again.add(op.name)
            wanted.extend(t for t in op.inputs if t.role is TensorRole.ACTIVATION)
    ops = tuple(replace(op, phase=Phase.RECOMPUTE) for op in body if op.name in again)
    return ops, tuple(saved[name] for name in sorted(saved))


def check_saved_names(remat: Remat, tensors: Iterable[Tensor]) -> None:
    """Raise PlanError if a saved tensor is made by no layer; weights are always kept."""
    known = {tensor.short for tensor in tensors if tensor.role is TensorRole.ACTIVATION}
    for which, names in (("save", remat.save), ("offload", remat.offload)):
        for name in names:
            if name not in known:
                raise PlanError(
                    f"plan.{which} lists {name!r}, which is no activation of a layer: "
                    f"{nearest(name.rsplit('/', 1)[-1], known)}"
                )
