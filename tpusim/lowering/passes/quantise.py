"""Quantised matmuls: the matmuls in a narrower dtype, and the passes that cast their operands.

Quantised are the matmuls of the layers' weights, as AQT's and Qwix's recipes in MaxText do: forward
(and recomputed), input gradient and weight gradient, each in the plan's dtype for it. Attention's
matmuls, the embedding, the projection to the vocabulary and the router stay as they are (so in
DeepSeek-V3, arXiv:2412.19437, section 3.3.1). Operands are kept in HBM
in the compute dtype, and gathered in it unless `gather_dtype` says otherwise: weights in
`transfer_dtypes.py`, activations in `gather_quantised.py`. Before the matmul a pass over each
finds the absolute maximum of each channel along what is summed, scales and casts.
Assumed: the pass reads its operand once, is not fused to what makes it, and takes the maximum of
the device's own part (AQT's local quantisation), so scales are not exchanged, and partial sums are
added up over devices once they are scaled, in the compute dtype. Where AQT's scales are those of
the whole sum, the compiler adds up the int32 accumulators instead, at twice the bytes (libtpu
0.0.42.1, programs for v5e, v5p and v6e); MaxText's GPT3 175B on v6e 16x16 reduces gradients in bf16
(libtpu 0.0.11.1), and published runs over `tensor` on v5e and v5p would be slower still. Random
numbers that round gradients stochastically (`noise`) cost what moves them, not what draws them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tpusim.base.errors import PlanError
from tpusim.base.phase import Phase
from tpusim.graph import (
    COMPUTE,
    Einsum,
    Pointwise,
    Tensor,
    TensorRole,
    plain_dim,
    union_dims,
)
from tpusim.hardware import Chip
from tpusim.lowering.body_entries import CollectiveMatmul, Entry
from tpusim.partition import Buffer, ComputeNode, Layout, LocalShape, Node
from tpusim.plan import MATMUL_DTYPES, WIDE_DTYPES, Numerics

QUANTISE_FLOPS = 5.0
"""Vector operations per element beside conversions: absolute value, maximum, scaling, rounding and
clipping. Assumed: counted from the formula of symmetric absmax quantisation (AQT, Qwix)."""

SCALE_FLOPS = 2.0
"""Vector operations per element of a quantised matmul's result: the scales of row and column."""

CATEGORY = "quantised operands"
RANDOM = "random numbers"
UNQUANTISED = "vocab"

QuantisedKey = tuple[str, str, tuple[str, ...], Layout]


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
    if dtypes.of("loss") != dtypes.compute == "f32":
        raise PlanError(
            "plan.loss_dtype is 'bf16', but plan.dtype is 'f32': logits are no less precise than "
            "the activations that they are made of; leave it out"
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
    dtype = _matmul_dtype(compute, dtypes, weights)
    if not dtype or dtype == dtypes.compute:
        return compute
    op = compute.op
    assert isinstance(op, Einsum)
    lhs, rhs = (replace(tensor, dtype=dtype) for tensor in op.inputs)
    return replace(compute, op=replace(op, lhs=lhs, rhs=rhs))


def _matmul_dtype(compute: ComputeNode, dtypes: Numerics, weights: frozenset[str]) -> str:
    """Return the plan's dtype for a layer's matmul with a weight or its gradient; else ""."""
    op = compute.op
    if not isinstance(op, Einsum):
        return ""
    if not may_be_quantised(op):
        return ""
    by_key = dtypes.matmuls
    if op.output.primal in weights:
        return by_key["matmul_dtype_dw"]
    if all(tensor.role is not TensorRole.PARAM for tensor in op.inputs):
        return ""
    return by_key["matmul_dtype_dx" if op.phase is Phase.BACKWARD else "matmul_dtype"]


def may_be_quantised(op: Einsum) -> bool:
    """Return False for the projection to the vocabulary and for the router."""
    dims = {plain_dim(dim) for dim in union_dims(*op.inputs)}
    return UNQUANTISED not in dims and ("expert" not in dims or "slot" in dims)


def is_quantised(op: Einsum) -> bool:
    """Return True if both operands are narrower than the compute dtype.

    The gradient of the logits may be wider; it is then converted as it is read.
    """
    return op.lhs.dtype == op.rhs.dtype != COMPUTE


def insert_quantisations(
    entries: Sequence[Entry], buffers: dict[str, Buffer], noise: str = ""
) -> list[Entry]:
    """Insert a pass before each quantised matmul for each operand that no pass has cast yet.

    Matmuls that sum a tensor over the same dimensions share its copy: the inputs of Q, K and V. An
    operand that a ring gathers is cast in the ring, chunk by chunk. The copies are added to
    `buffers`.

    noise: dtype of the random numbers that round gradients; empty for none.
    """
    made: dict[QuantisedKey, ComputeNode] = {}
    result: list[Entry] = []
    for entry in entries:
        compute = entry.compute if isinstance(entry, CollectiveMatmul) else entry
        if (
            isinstance(compute, ComputeNode)
            and isinstance(compute.op, Einsum)
            and is_quantised(compute.op)
        ):
            gathered = (
                entry.collective.writes
                if isinstance(entry, CollectiveMatmul) and entry.gathers
                else ()
            )
            for place, key in operands(compute):
                if key not in gathered and buffers[key].dtype != compute.op.inputs[place].dtype:
                    compute = _with_cast_operand(compute, place, key, made, result, buffers, noise)
            entry = (
                replace(entry, compute=compute) if isinstance(entry, CollectiveMatmul) else compute
            )
        result.append(entry)
    return result


def operands(compute: ComputeNode) -> list[tuple[int, str]]:
    """Return the places and buffers of both operands, which a matmul reads first."""
    return list(enumerate(compute.reads[:2]))


def _with_cast_operand(
    compute: ComputeNode,
    place: int,
    key: str,
    made: dict[QuantisedKey, ComputeNode],
    result: list[Entry],
    buffers: dict[str, Buffer],
    noise: str,
) -> ComputeNode:
    """Return the matmul reading a cast copy of one operand, which is added if there is none."""
    tensor = compute.op.inputs[place]
    split = dict(compute.split)
    local = LocalShape(tensor.dims, tuple(split.get(dim, ()) for dim in tensor.dims))
    over = tuple(dim for dim in tensor.dims if dim not in compute.op.outputs[0].dims)
    wanted = (key, tensor.dtype, over, local.layout)
    if wanted not in made:
        made[wanted] = _pass(compute, tensor, key, over, buffers)
        buffers[made[wanted].writes[0]] = Buffer(local, tensor.dtype, CATEGORY)
        result += rounded(made[wanted], noise, buffers)
    reads = [made[wanted].writes[0] if key == read else read for read in compute.reads]
    if any(_same(tensor, other) for group in compute.epilogue for other in group.inputs):
        reads.append(key)
    return replace(compute, reads=tuple(reads))


def _same(tensor: Tensor, other: Tensor) -> bool:
    return tensor.name == other.name


def _pass(
    compute: ComputeNode,
    tensor: Tensor,
    key: str,
    over: tuple[str, ...],
    buffers: Mapping[str, Buffer],
) -> ComputeNode:
    copy = f"{key} {tensor.dtype} over {'+'.join(over)}"
    while copy in buffers:
        copy += "'"
    return ComputeNode(
        name=f"quantise/{copy}",
        op=quantisation(tensor, compute.phase, over, buffers[key].dtype),
        split=tuple((dim, axes) for dim, axes in compute.split if dim in tensor.dims),
        reads=(key,),
        writes=(copy,),
    )


def rounded(cast: ComputeNode, noise: str, buffers: dict[str, Buffer]) -> tuple[ComputeNode, ...]:
    """Return the pass that quantises a tensor; that of a gradient after one that draws its noise.

    Random numbers are written to HBM, one an element, and the pass reads them (programs of AQT's
    arithmetic on v5p 2x2x1 and v6e 2x2, libtpu 0.0.42.1, and MaxText's own GPT-3 on v6e 16x16).
    They are added to `buffers`.

    noise: their dtype; empty for rounding to the nearest.
    """
    op = cast.op
    assert isinstance(op, Pointwise)
    if not noise or op.inputs[0].role is not TensorRole.GRADIENT:
        return (cast,)
    key = f"{cast.writes[0]} noise"
    drawn = replace(op.inputs[0], name=key, role=TensorRole.ACTIVATION, dtype=noise, primal="")
    draw = Pointwise(f"{op.name}/noise", (), (drawn,), 0.0, keeps="", phase=op.phase)
    buffers[key] = Buffer(buffers[cast.writes[0]].local, noise, RANDOM)
    return (
        replace(cast, name=f"noise/{cast.writes[0]}", op=draw, reads=(), writes=(key,)),
        replace(cast, op=replace(op, inputs=(*op.inputs, drawn)), reads=(*cast.reads, key)),
    )


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
