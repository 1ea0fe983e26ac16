"""Quantised matmuls: the passes that cast their operands.

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

from tpusim.graph import (
    Einsum,
    Pointwise,
    Tensor,
    TensorRole,
)
from tpusim.lowering.body_entries import CollectiveMatmul, Entry
from tpusim.lowering.operand_dtypes import is_quantised, quantisation
from tpusim.partition import Buffer, ComputeNode, Layout, LocalShape

CATEGORY = "quantised operands"
RANDOM = "random numbers"

QuantisedKey = tuple[str, str, tuple[str, ...], Layout]


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
