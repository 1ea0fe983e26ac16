"""Activations that are gathered for quantised matmuls: quantised first, and gathered narrow.

The operand of a matmul is what the compiler reshards, so of a quantised matmul it gathers the
quantised tensor, and each device quantises its own shard. Matmuls that sum over other dimensions
have other scales, and each set of scales has a gather of its own: of a gradient one for the
gradient of the input and one for that of the weight, together as large as one in bf16.

So in four programs with AQT's arithmetic (layers of 175 billion parameters; libtpu 0.0.42.1):
`embed` of activations over 16 devices of v5e 4x4, over 16 of v5e 16x16 and over 8 of v5p 4x4x8,
both beside `fsdp` over 16, and their sequence over 16 of v5p 2x2x4. Every gather of such an operand
is in s8, in rings and on its own; those for the embedding and the projection to the vocabulary are
in bf16. In a fifth, with the gradients of weights in bf16 (v5e 4x4), the operands of these are
gathered in bf16, beside the same tensors in s8 for the other matmuls. The exchange of maxima, a
number for each channel, is not counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tpusim.graph import Einsum, Tensor
from tpusim.lowering.collective_choice import gathers_activation
from tpusim.lowering.operand_dtypes import is_quantised, quantisation
from tpusim.lowering.passes.quantise import CATEGORY, operands, rounded
from tpusim.partition import Buffer, CollectiveNode, ComputeNode, Node


@dataclass(frozen=True, slots=True)
class _Scales:
    """What a quantised matmul reads: a tensor in its dtype, with scales along the sum's dimensions.

    over: the dimensions.
    """

    tensor: Tensor
    over: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.tensor.dtype} over {'+'.join(self.over)}"


def gather_quantised(
    nodes: Sequence[Node], buffers: dict[str, Buffer], noise: str = ""
) -> list[Node]:
    """Gather activations as their readers multiply them: once for each set of scales, and unscaled.

    A gather keeps its place for what its first reader takes; for others there is one more before
    the first of them. Gathers of one shard share its quantised copy. `buffers` takes the quantised
    shards and the copies.

    noise: dtype of the random numbers that round gradients; empty for none.
    """
    gathers: dict[str, CollectiveNode] = {}
    copies: dict[str, dict[_Scales | None, str]] = {}
    result: list[Node] = []
    made: set[str] = set()
    for place, node in enumerate(nodes):
        if gathers_activation(node):
            (key,) = node.writes
            readers = [other for other in nodes[place:] if key in other.reads]
            taken = [_taken(reader, key) for reader in readers]
            if any(taken) and all(isinstance(reader, ComputeNode) for reader in readers):
                gathers[key], copies[key] = node, {taken[0]: key}
                result += _gathered(node, taken[0], buffers, noise, made)
                continue
        for key in dict.fromkeys(key for key in node.reads if key in gathers):
            assert isinstance(node, ComputeNode)
            scales = _taken(node, key)
            if scales not in copies[key]:
                copy = copies[key][scales] = f"{key} {scales or 'unscaled'}"
                again = replace(gathers[key], name=f"all-gather/{copy}", writes=(copy,))
                buffers[copy] = replace(buffers[key], dtype=again.dtype)
                again = replace(again, phase=node.phase)
                result += _gathered(again, scales, buffers, noise, made)
            copy = copies[key][scales]
            node = replace(node, reads=tuple(copy if read == key else read for read in node.reads))
        result.append(node)
    return result


def _taken(reader: Node, key: str) -> _Scales | None:
    """Return what a reader takes of a gathered tensor; None for the tensor as it is."""
    if not isinstance(reader, ComputeNode) or not isinstance(reader.op, Einsum):
        return None
    places = [place for place, read in enumerate(reader.reads) if read == key]
    if not is_quantised(reader.op) or len(places) != 1 or (places[0], key) not in operands(reader):
        return None
    tensor = reader.op.inputs[places[0]]
    made = reader.op.outputs[0].dims
    return _Scales(tensor, tuple(dim for dim in tensor.dims if dim not in made))


def _gathered(
    gather: CollectiveNode,
    scales: _Scales | None,
    buffers: dict[str, Buffer],
    noise: str,
    made: set[str],
) -> list[Node]:
    """Return the gather; of a scaled tensor, with the pass over the shard before it.

    made: quantised shards that there are; takes this one.
    """
    if scales is None:
        return [gather]
    (source,), (copy,) = gather.reads, gather.writes
    local, key, dtype = buffers[source].local, f"{source} {scales}", scales.tensor.dtype
    cast = ComputeNode(
        name=f"quantise/{key}",
        op=quantisation(scales.tensor, gather.phase, scales.over, buffers[source].dtype),
        split=tuple((dim, axes) for dim, axes in local.split().items() if axes),
        reads=(source,),
        writes=(key,),
    )
    buffers[copy] = replace(buffers[copy], dtype=dtype)
    gather = replace(gather, dtype=dtype, reads=(key,))
    if key in made:
        return [gather]
    made.add(key)
    buffers[key] = Buffer(local, dtype, CATEGORY)
    return [*rounded(cast, noise, buffers), gather]
