"""Numerics of operands and transfers: which ones a step has, and what converts them.

Which matmuls are quantised, and in which dtype weights are gathered and gradients reduced, is said
here; the passes that set and cast are `passes.quantise` and `passes.transfer_dtypes`.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace

from tpusim.base.errors import PlanError
from tpusim.base.phase import Phase
from tpusim.graph import COMPUTE, Einsum, Op, Pointwise, Tensor, TensorRole, plain_dim, union_dims
from tpusim.hardware import Chip
from tpusim.partition import (
    Buffer,
    CollectiveNode,
    ComputeNode,
    Node,
    PartitionedGraph,
    Purpose,
    body_nodes,
)
from tpusim.plan import MATMUL_DTYPES, WIDE_DTYPES, Numerics

QUANTISE_FLOPS = 5.0
"""Vector operations per element beside conversions: absolute value, maximum, scaling, rounding and
clipping. Assumed: counted from the formula of symmetric absmax quantisation (AQT, Qwix)."""

SCALE_FLOPS = 2.0
"""Vector operations per element of a quantised matmul's result: the scales of row and column."""

UNQUANTISED = "vocab"

GRADIENTS = "unreduced gradients"


def check_dtypes(dtypes: Numerics, chip: Chip) -> None:
    """Raise PlanError for a dtype that the chip has no rate for, and for those that contradict."""
    for key, dtype in (("dtype", dtypes.compute), *dtypes.matmuls.items()):
        if dtype not in chip.flops:
            taken = ("bf16", "f32") if key == "dtype" else MATMUL_DTYPES
            raise PlanError(
                f"plan.{key} is {dtype!r}, but {chip.name} has no {dtype} matmul; "
                f"write {' or '.join(name for name in taken if name in chip.flops)}"
            )
    _check_gathers(dtypes)
    for key in ("logits", "loss"):
        if dtypes.of(key) != dtypes.compute == "f32":
            raise PlanError(
                f"plan.{key}_dtype is 'bf16', but plan.dtype is 'f32': logits are no less precise "
                "than the activations that they are made of; leave it out"
            )


def _check_gathers(dtypes: Numerics) -> None:
    """Raise PlanError for gathers in a dtype that the weights are never in."""
    dtype = dtypes.of("gather")
    forward = {key: dtypes.matmuls[key] for key in ("matmul_dtype", "matmul_dtype_dx")}
    other = next((key for key, own in forward.items() if own != dtype), None)
    if other is None or not dtypes.gathers_quantised:
        return
    if dtype in WIDE_DTYPES:
        raise PlanError(
            f"plan.gather_dtype is {dtype!r}, but weights are stored in {dtypes.param} and "
            f"used in {dtypes.compute}; write one of those"
        )
    raise PlanError(
        f"plan.gather_dtype is {dtype!r}, but plan.{other} is {forward[other]!r}: weights that "
        f"arrive in {dtype} are multiplied in it, forward and for input gradients; write "
        f"matmul_dtype = {dtype!r}, or leave gather_dtype out"
    )


def mark_quantised(nodes: Sequence[Node], dtypes: Numerics, weights: frozenset[str]) -> list[Node]:
    """Mark the operands of quantised matmuls with the dtype in which they multiply."""
    if not dtypes.quantised:
        return list(nodes)
    return [
        _marked(node, dtypes, weights) if isinstance(node, ComputeNode) else node for node in nodes
    ]


def _marked(compute: ComputeNode, dtypes: Numerics, weights: frozenset[str]) -> ComputeNode:
    op = compute.op
    key = matmul_key(op, weights)
    dtype = dtypes.matmuls.get(key, dtypes.compute)
    if dtype == dtypes.compute:
        return compute
    assert isinstance(op, Einsum)
    lhs, rhs = (replace(tensor, dtype=dtype) for tensor in op.inputs)
    return replace(compute, op=replace(op, lhs=lhs, rhs=rhs))


def matmul_key(op: Op, weights: Container[str]) -> str:
    """Return the plan's key for the dtype of a layer's matmul with a weight, or its gradient.

    It is empty for all other operations.
    """
    if not isinstance(op, Einsum) or not may_be_quantised(op):
        return ""
    if op.output.primal in weights:
        return "matmul_dtype_dw"
    if all(tensor.role is not TensorRole.PARAM for tensor in op.inputs):
        return ""
    return "matmul_dtype_dx" if op.phase is Phase.BACKWARD else "matmul_dtype"


def may_be_quantised(op: Einsum) -> bool:
    """Return False for the projection to the vocabulary and for the router."""
    dims = {plain_dim(dim) for dim in union_dims(*op.inputs)}
    return UNQUANTISED not in dims and ("expert" not in dims or "slot" in dims)


def is_quantised(op: Einsum) -> bool:
    """Return True if both operands are narrower than the compute dtype.

    The gradient of the logits may be wider; it is then converted as it is read.
    """
    return op.lhs.dtype == op.rhs.dtype != COMPUTE


def quantisation(
    tensor: Tensor, phase: Phase, over: tuple[str, ...] = (), source: str = COMPUTE
) -> Pointwise:
    """Return the pass that casts `tensor` from the dtype `source`, with scales along `over`."""
    cast = replace(tensor, name=f"{tensor.name} {tensor.dtype}")
    return Pointwise(
        f"{tensor.name}/quantise",
        (replace(tensor, dtype=source),),
        (cast,),
        QUANTISE_FLOPS,
        over=over,
        keeps="",
        phase=phase,
    )


def conversion(tensor: Tensor, source: str, phase: Phase) -> Pointwise:
    """Return the pass that casts `tensor` from the dtype `source`: one conversion per element."""
    cast = replace(tensor, name=f"{tensor.name} cast")
    given = (replace(tensor, dtype=source),)
    return Pointwise(f"{tensor.name}/cast", given, (cast,), 0.0, keeps="", phase=phase)


def reduced_in(dtypes: Numerics, buffers: Mapping[str, Buffer]) -> dict[str, Buffer]:
    """Return the buffers, with unreduced gradients in the dtype of their reduction."""
    dtype = tensor_dtype(dtypes.of("reduce"), dtypes)
    return {
        key: replace(buffer, dtype=dtype) if _is_term(buffer) else buffer
        for key, buffer in buffers.items()
    }


def with_reduced_dtype(
    compute: ComputeNode, weights: frozenset[str], dtypes: Numerics
) -> ComputeNode:
    """Return an operation whose element-wise groups have weight gradients as they are reduced."""
    dtype = tensor_dtype(dtypes.of("reduce"), dtypes)
    if dtype == COMPUTE:
        return compute
    op = compute.op
    if isinstance(op, Pointwise):
        op = _with_gradients_in(dtype, op, weights)
    after = tuple(_with_gradients_in(dtype, group, weights) for group in compute.epilogue)
    return replace(compute, op=op, epilogue=after)


def _with_gradients_in(dtype: str, group: Pointwise, weights: frozenset[str]) -> Pointwise:
    inputs, outputs = (
        tuple(replace(t, dtype=dtype) if t.primal in weights else t for t in tensors)
        for tensors in (group.inputs, group.outputs)
    )
    return replace(group, inputs=inputs, outputs=outputs)


def _is_term(buffer: Buffer) -> bool:
    """Return True for an unreduced gradient; sums over iterations have a dtype of their own."""
    return buffer.category == GRADIENTS and buffer.dtype == COMPUTE


def gather_dtypes(nodes: Sequence[Node], dtypes: Numerics) -> dict[str, str]:
    """Return the dtype of each weight gather that is not in the compute dtype, by its name.

    A weight that is quantised first is gathered for quantised matmuls alone, by whatever route.
    """
    dtype = dtypes.of("gather")
    if dtype == dtypes.compute:
        return {}
    gathers = [n for n in nodes if isinstance(n, CollectiveNode) and n.purpose is Purpose.WEIGHT]
    computes = [n for n in nodes if isinstance(n, ComputeNode)]
    fit: dict[str, bool] = {}
    for collective in reversed(gathers):
        (key,) = collective.writes
        fits = [fit[other.name] for other in gathers if key in other.reads]
        if dtypes.gathers_quantised:
            fits += [
                weight_in(compute.op, collective.tensor).dtype == dtype
                for compute in computes
                if key in compute.reads
            ]
        fit[collective.name] = all(fits)
    return dict.fromkeys((name for name, fits in fit.items() if fits), dtype)


def reduced_dtype(node: CollectiveNode, dtypes: Numerics) -> str:
    """Return the dtype in which a collective of a gradient moves it."""
    return tensor_dtype(dtypes.of("reduce"), dtypes) if node.dtype == COMPUTE else node.dtype


def cast_before(partitioned: PartitionedGraph, dtypes: Numerics) -> frozenset[str]:
    """Return the weights whose shards are cast to the compute dtype, once per step."""
    names = frozenset(weight.name for weight in partitioned.weights)
    if dtypes.of("gather") == dtypes.compute:
        return names
    nodes = mark_quantised([node for node, _ in body_nodes(partitioned.nodes)], dtypes, names)
    others = gather_dtypes(nodes, dtypes)
    made = {key for node in nodes for key in node.writes}
    return frozenset(
        name
        for node in nodes
        if not (isinstance(node, CollectiveNode) and node.name in others)
        for name in _stored(node, made)
        if name in names
    )


def _stored(node: Node, made: set[str]) -> Iterator[str]:
    """Yield the stored tensors that a node reads: nothing in the step writes them."""
    if isinstance(node, CollectiveNode) and made.isdisjoint(node.reads):
        yield node.tensor
    if isinstance(node, ComputeNode):
        own = [key for key in node.reads if key not in made]
        yield from (
            t.name
            for t in node.op.inputs
            if t.role is TensorRole.PARAM and any(key.endswith(t.name) for key in own)
        )


def weight_in(op: Op, name: str) -> Tensor:
    """Return the input of an operation that has this name."""
    return next(tensor for tensor in op.inputs if tensor.name == name)


def tensor_dtype(dtype: str, dtypes: Numerics) -> str:
    """Return the dtype as tensors name it, which call the plan's own `compute`."""
    return COMPUTE if dtype == dtypes.compute else dtype
