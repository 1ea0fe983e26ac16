"""Matmuls in a narrower dtype than the activations': which ones, and the passes that cast operands.

Quantised are the matmuls of the layers' weights, as AQT's and Qwix's recipes in MaxText do: forward
(and recomputed), input gradient and weight gradient, each in the plan's dtype for it. Attention's
products, the embedding, the projection to the vocabulary and the router stay as they are (so in
DeepSeek-V3, arXiv:2412.19437, section 3.3.1). Operands lie in HBM
in the compute dtype, and travel in it unless `gather_dtype` says otherwise. Before the matmul a
pass over each finds the absolute maximum of each channel along what is summed, scales and casts.
Assumed: the pass reads its operand once, is not fused to what makes it, and takes the maximum of
the device's own part (AQT's local quantisation), so scales are not exchanged.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tpusim.errors import PlanError
from tpusim.graph import COMPUTE, Einsum, Pointwise, Role, Tensor, union_dims
from tpusim.hardware import Chip
from tpusim.partition.keys.dtypes import MATMUL_DTYPES, WIDE_DTYPES
from tpusim.partition.layout import Layout, Local
from tpusim.partition.passes import Entry, Ring
from tpusim.partition.plan import Plan
from tpusim.partition.template import Buffer, Calc, Node
from tpusim.phase import Phase

QUANTISE_FLOPS = 5.0
"""Vector operations an element beside conversions: absolute value, maximum, scaling, rounding and
clipping. Assumed: counted from the formula of symmetric absmax quantisation (AQT, Qwix)."""

SCALE_FLOPS = 2.0
"""Vector operations an element of a quantised matmul's result: the scales of row and column."""

CATEGORY = "quantised operands"
UNQUANTISED = "vocab"

Key = tuple[str, str, tuple[str, ...], Layout]


def check_dtypes(plan: Plan, chip: Chip) -> None:
    """Raise PlanError for a dtype that the chip has no rate for, and for those that contradict."""
    for key, dtype in (("dtype", plan.dtype), *plan.matmul_dtypes.items()):
        if dtype not in chip.flops:
            taken = ("bf16", "f32") if key == "dtype" else MATMUL_DTYPES
            raise PlanError(
                f"plan.{key} is {dtype!r}, but {chip.name} has no {dtype} matmul; "
                f"write {' or '.join(name for name in taken if name in chip.flops)}"
            )
    _check_gathers(plan)
    if plan.dtype_of("loss_dtype") != plan.dtype == "f32":
        raise PlanError(
            "plan.loss_dtype is 'bf16', but plan.dtype is 'f32': logits are no less precise than "
            "the activations that they are made of; leave it out"
        )


def _check_gathers(plan: Plan) -> None:
    """Raise PlanError for gathers in a dtype that the weights are never in."""
    dtype = plan.dtype_of("gather_dtype")
    forward = {key: plan.matmul_dtypes[key] for key in ("matmul_dtype", "matmul_dtype_dx")}
    other = next((key for key, own in forward.items() if own != dtype), None)
    if other is None or not plan.gathers_quantised:
        return
    if dtype in WIDE_DTYPES:
        raise PlanError(
            f"plan.gather_dtype is {dtype!r}, but weights are stored in {plan.param_dtype} and "
            f"used in {plan.dtype}; write one of those"
        )
    raise PlanError(
        f"plan.gather_dtype is {dtype!r}, but plan.{other} is {forward[other]!r}: weights that "
        f"arrive in {dtype} are multiplied in it, forward and for input gradients; write "
        f"matmul_dtype = {dtype!r}, or leave gather_dtype out"
    )


def narrowed(nodes: Sequence[Node], plan: Plan, weights: frozenset[str]) -> list[Node]:
    """The nodes with the operands of quantised matmuls in the dtype that they multiply in."""
    if not plan.quantised:
        return list(nodes)
    return [_narrowed(node, plan, weights) if isinstance(node, Calc) else node for node in nodes]


def _narrowed(calc: Calc, plan: Plan, weights: frozenset[str]) -> Calc:
    dtype = _matmul_dtype(calc, plan, weights)
    if not dtype or dtype == plan.dtype:
        return calc
    op = calc.op
    assert isinstance(op, Einsum)
    lhs, rhs = (replace(tensor, dtype=dtype) for tensor in op.inputs)
    return replace(calc, op=replace(op, lhs=lhs, rhs=rhs))


def _matmul_dtype(calc: Calc, plan: Plan, weights: frozenset[str]) -> str:
    """The plan's dtype for a layer's matmul with a weight, or for its gradient; else nothing."""
    op = calc.op
    if not isinstance(op, Einsum):
        return ""
    dims = union_dims(*op.inputs)
    if UNQUANTISED in dims or ("expert" in dims and "slot" not in dims):
        return ""
    dtypes = plan.matmul_dtypes
    if op.output.primal in weights:
        return dtypes["matmul_dtype_dw"]
    if all(tensor.role is not Role.PARAM for tensor in op.inputs):
        return ""
    return dtypes["matmul_dtype_dx" if op.phase is Phase.BACKWARD else "matmul_dtype"]


def is_quantised(op: Einsum) -> bool:
    """Whether both its operands are narrower than the compute dtype.

    The gradient of the logits may be wider; it is then converted as it is read.
    """
    return op.lhs.dtype == op.rhs.dtype != COMPUTE


def with_passes(entries: Sequence[Entry], buffers: dict[str, Buffer]) -> list[Entry]:
    """The entries with a pass before each quantised matmul for each operand that none has cast yet.

    Matmuls that sum a tensor over the same dimensions share its copy: the inputs of Q, K and V. An
    operand that a ring gathers is cast in the ring, chunk by chunk. The copies are added to
    `buffers`.
    """
    made: dict[Key, Calc] = {}
    result: list[Entry] = []
    for entry in entries:
        calc = entry.calc if isinstance(entry, Ring) else entry
        if isinstance(calc, Calc) and isinstance(calc.op, Einsum) and is_quantised(calc.op):
            gathered = entry.comm.writes if isinstance(entry, Ring) and entry.gathers else ()
            for place, key in _operands(calc):
                if key not in gathered and buffers[key].dtype != calc.op.inputs[place].dtype:
                    calc = _brought(calc, place, key, made, result, buffers)
            entry = replace(entry, calc=calc) if isinstance(entry, Ring) else calc
        result.append(entry)
    return result


def _operands(calc: Calc) -> list[tuple[int, str]]:
    """The places and the buffers of both operands, which a product reads first."""
    return list(enumerate(calc.reads[:2]))


def _brought(
    calc: Calc, place: int, key: str, made: dict[Key, Calc], result: list[Entry],
    buffers: dict[str, Buffer],
) -> Calc:  # fmt: skip
    """The matmul reading a cast copy of one operand, which is made where there is none yet."""
    tensor = calc.op.inputs[place]
    split = dict(calc.split)
    local = Local(tensor.dims, tuple(split.get(dim, ()) for dim in tensor.dims))
    over = tuple(dim for dim in tensor.dims if dim not in calc.op.outputs[0].dims)
    wanted = (key, tensor.dtype, over, local.layout)
    if wanted not in made:
        made[wanted] = _pass(calc, tensor, key, over, buffers)
        buffers[made[wanted].writes[0]] = Buffer(local, tensor.dtype, CATEGORY)
        result.append(made[wanted])
    reads = [made[wanted].writes[0] if key == read else read for read in calc.reads]
    if any(_same(tensor, other) for group in calc.epilogue for other in group.inputs):
        reads.append(key)
    return replace(calc, reads=tuple(reads))


def _same(tensor: Tensor, other: Tensor) -> bool:
    return tensor.name == other.name


def _pass(
    calc: Calc, tensor: Tensor, key: str, over: tuple[str, ...], buffers: Mapping[str, Buffer]
) -> Calc:
    copy = f"{key} {tensor.dtype} over {'+'.join(over)}"
    while copy in buffers:
        copy += "'"
    return Calc(
        name=f"quantise/{copy}", op=quantisation(tensor, calc.phase, over, buffers[key].dtype),
        split=tuple((dim, axes) for dim, axes in calc.split if dim in tensor.dims),
        reads=(key,), writes=(copy,),
    )  # fmt: skip


def quantisation(
    tensor: Tensor, phase: Phase, over: tuple[str, ...] = (), source: str = COMPUTE
) -> Pointwise:
    """The pass that casts `tensor` from the dtype `source`, with scales along `over`."""
    cast = replace(tensor, name=f"{tensor.name} {tensor.dtype}")
    return Pointwise(
        f"{tensor.name}/quantise", (replace(tensor, dtype=source),), (cast,), QUANTISE_FLOPS,
        over=over, keeps="", phase=phase,
    )  # fmt: skip
