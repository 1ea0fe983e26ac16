"""Rematerialisation: the tensors that the forward pass saves, and those computed again.

Given the tensors that are saved, the recomputation is the set of forward operations that the
backward pass still needs, found by reachability: an operation whose results are not read again
(a layer's last projection) drops out by itself.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

from tpusim.base.errors import PlanError, nearest
from tpusim.base.phase import Phase
from tpusim.base.value_checks import check_flag, check_names, check_words
from tpusim.graph.attention import Attention
from tpusim.graph.contractions import Einsum
from tpusim.graph.function import COPY
from tpusim.graph.linear_attention import LinearAttention
from tpusim.graph.ops import Op
from tpusim.graph.pointwise import Pointwise
from tpusim.graph.tensor import Tensor, TensorRole

LAYER_IN = "layer_in"
"""The input of a layer, which every policy saves."""

Policy: TypeAlias = Literal["full", "minimal", "dots", "none"]
POLICIES: tuple[Policy, ...] = get_args(Policy)


@dataclass(frozen=True, slots=True)
class Remat:
    """A rematerialisation policy, and tensors that are saved besides.

    policy: saved tensors: `full` (each layer's input), `minimal` (also results of matmuls with
        weights), `dots` (of all matmuls) or `none` (all). `minimal` is JAX's
        `dots_with_no_batch_dims_saveable`; `none` is a step without a checkpoint
        (`Pointwise.residuals`).
    save: short names of further tensors to save, such as `q` or `mlp_in`.
    offload: short names of tensors to save on the host.
    scan_layers: layers as a loop (`lax.scan`); false for layers written one after the other. A loop
        stacks its saved tensors and gradients. Layers with offloaded tensors are lowered as a loop
        in both cases. MaxText: `scan_layers`.
    """

    policy: Policy = "full"
    save: Sequence[str] = ()
    offload: Sequence[str] = ()
    scan_layers: bool = True

    def __post_init__(self) -> None:
        check_words("plan.remat", self)
        check_flag("plan.remat.scan_layers", self.scan_layers)
        for key in ("save", "offload"):
            check_names(f"plan.remat.{key}", getattr(self, key))
            object.__setattr__(self, key, tuple(getattr(self, key)))
        for name in self.offload:
            if name in self.save:
                raise PlanError(
                    f"{name!r} is in plan.remat.save and in plan.remat.offload; keep it in one: "
                    "save holds it in HBM, offload on the host"
                )

    @property
    def unrolled(self) -> bool:
        """True if the layers have no stacks."""
        return not (self.scan_layers or self.offload)

    @property
    def left_to_compiler(self) -> bool:
        """True if no checkpoint and no loop says what is saved, so that the compiler chooses.

        It keeps what is in memory anyway, the results of matmuls and kernels and what kernels
        read, those of activation functions, which the matmul before them writes too, and norms
        (3 f + 8 e a layer in plans of four and eight layers on v4, v5p and v6e). It computes
        other element-wise groups in whatever reads their results: no residuals of
        JAX's linearisation are written (four layers on v5p 2x2x4, v6e 4x4 and 7x 2x2x2 need 0.68 to
        0.84 of the HBM of a scan; all that is no matmul takes a quarter to a half of the time that
        residuals would, libtpu 0.0.42.1).
        """
        return self.policy == "none" and self.unrolled

    @property
    def keeps_norms(self) -> bool:
        """True if norms that only matmuls read are in memory where the compiler chooses."""
        return True

    def keeps(self, op: Op, tensor: Tensor) -> bool:
        """Return True if `tensor`, made by `op`, is saved for the backward pass.

        A copy of a tensor that is saved by name is not, whose values would be saved twice.
        """
        named = (LAYER_IN, *self.save, *self.offload)
        if isinstance(op, Pointwise) and op.function == COPY and self.policy != "none":
            (source,) = op.making({tensor.name}).inputs
            if source.short in named:
                return False
        if tensor.short in named:
            return True
        if self.left_to_compiler:
            return not isinstance(op, Pointwise) or op.alone or (op.fusible and not op.linear)
        if self.policy == "none":
            return True
        if not isinstance(op, Einsum):
            return False
        with_weight = any(operand.role is TensorRole.PARAM for operand in op.inputs)
        return self.policy == "dots" or (self.policy == "minimal" and with_weight)

    def with_residuals(self, op: Op) -> Op:
        """Return the operation with the residuals that differentiation keeps of it."""
        written = self.policy == "none" and not self.unrolled
        if written and isinstance(op, Pointwise) and op.residuals:
            return op.with_residuals()
        return op


@dataclass(frozen=True, slots=True)
class PlainMatmuls(Remat):
    """A policy of layers whose matmuls are no loops, as nothing is gathered in them.

    What the compiler is free to compute again it then does in the matmuls of the backward pass:
    nothing is saved that is no result of a matmul or of a kernel, neither activation functions nor
    norms. Their results are operands of rings otherwise, which are in memory. (Language models and
    T5 over `data` on v3, v4 and v5e, written without a scan, four and twelve layers, libtpu
    0.0.42.1: 0.68 to 0.85 of the HBM that they would need otherwise.)
    """

    def keeps(self, op: Op, tensor: Tensor) -> bool:
        """Return True if `tensor`, made by `op`, is saved for the backward pass."""
        return not isinstance(op, Pointwise) or (op.alone and not op.generated)

    @property
    def keeps_norms(self) -> bool:
        """False: norms are computed again in the matmuls that read them."""
        return False


def recompute(
    body: tuple[Op, ...],
    backward: Iterable[Op],
    keeps: Callable[[Op, Tensor], bool],
    *,
    in_readers: bool = False,
    keeps_norms: bool = True,
) -> tuple[tuple[Op, ...], tuple[Tensor, ...]]:
    """Return the forward operations to run again before `backward`, and the tensors to save.

    in_readers: element-wise groups run in the operations that read their results, if these are not
        in memory anyway.
    keeps_norms: norms that only matmuls read are in memory.
    """
    maker = {tensor.name: op for op in body for tensor in op.outputs}
    wanted = [t for op in backward for t in op.inputs if t.role is TensorRole.ACTIVATION]
    again: set[str] = set()
    saved: dict[str, Tensor] = {}
    while wanted:
        tensor = wanted.pop()
        op = maker.get(tensor.name)
        kept = op is None or keeps(op, tensor)
        if op is not None and in_readers:
            in_memory = _is_in_memory(op, maker, kept)
            kept = in_memory or (keeps_norms and _is_norm_of_matmuls(op, tensor, body))
        if op is None or kept:
            saved.setdefault(tensor.name, tensor)
        elif tensor.name not in again:
            again.add(tensor.name)
            read = op.making({tensor.name}).inputs if isinstance(op, Pointwise) else op.inputs
            wanted.extend(t for t in read if t.role is TensorRole.ACTIVATION)
    needed = (op for op in body if not again.isdisjoint(tensor.name for tensor in op.outputs))
    made = (op.making(again) if isinstance(op, Pointwise) else op for op in needed)
    ops = [replace(op, phase=Phase.RECOMPUTE) for op in made]
    if in_readers:
        ops = [replace(op, inlined=True) if isinstance(op, Pointwise) else op for op in ops]
    return tuple(ops), tuple(saved[name] for name in sorted(saved))


def _is_in_memory(op: Op, maker: Mapping[str, Op], kept: bool) -> bool:
    """Return True for what is in HBM anyway, norms apart: see `Remat.left_to_compiler`.

    A copy of what an attention kernel made is not.
    """
    if isinstance(op, Pointwise) and op.function == COPY:
        return kept and not isinstance(maker.get(op.inputs[0].name), Attention | LinearAttention)
    return kept


def _is_norm_of_matmuls(op: Op, tensor: Tensor, body: tuple[Op, ...]) -> bool:
    """Return True for the result of a norm that matmuls alone read."""
    if not isinstance(op, Pointwise) or op.function == COPY or not op.over:
        return False
    readers = [each for each in body if tensor in each.inputs]
    return bool(readers) and all(isinstance(each, Einsum) for each in readers)


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
