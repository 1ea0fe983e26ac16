"""Transfer dtypes: of weights while they are gathered, of gradients while they are reduced.

A weight is gathered in one of three dtypes. In the compute dtype: the local shards are cast once a
step, and the copies need nothing more. As it is stored: no shard is cast, and a pass casts each
gathered copy. In the dtype of quantised matmuls: a pass over the shard quantises it, first thing in
the body, and no pass is needed after; AQT calls the use of one quantised copy in the forward and
the backward matmul `use_fwd_quant`. Scales are sent too and not counted: one for each channel.

A weight's gradient leaves its matmul in the dtype in which it is reduced, and is stacked in another
by what writes the stack, without a pass of its own.
"""

from collections.abc import Sequence
from dataclasses import replace

from tpusim.graph import COMPUTE, Op, Pointwise, Tensor, TensorRole
from tpusim.lowering.body_entries import CollectiveMatmul, Entry, PlannedCollective
from tpusim.lowering.operand_dtypes import (
    conversion,
    gather_dtypes,
    quantisation,
    reduced_dtype,
    weight_in,
    with_reduced_dtype,
)
from tpusim.lowering.passes.quantise import CATEGORY
from tpusim.partition import (
    Buffer,
    CollectiveNode,
    ComputeNode,
    Node,
    Purpose,
)
from tpusim.plan import Numerics


def set_transfer_dtypes(
    nodes: Sequence[Node], dtypes: Numerics, weights: frozenset[str], buffers: dict[str, Buffer]
) -> list[Node]:
    """Set the dtypes of collectives of weights and gradients.

    Passes that quantise shards come first; `buffers` takes their results and the dtypes of copies.
    """
    gathers = gather_dtypes(nodes, dtypes)
    passes: dict[str, ComputeNode] = {}
    result: list[Node] = []
    for node in nodes:
        if isinstance(node, ComputeNode):
            node = with_reduced_dtype(node, weights, dtypes)
        elif isinstance(node, CollectiveNode) and node.purpose is Purpose.GRADIENT:
            node = replace(node, dtype=reduced_dtype(node, dtypes))
        elif isinstance(node, CollectiveNode) and node.name in gathers:
            node = _gathered(node, gathers[node.name], dtypes, passes, buffers)
        result.append(node)
    return [*passes.values(), *result]


def _gathered(
    collective: CollectiveNode,
    dtype: str,
    dtypes: Numerics,
    passes: dict[str, ComputeNode],
    buffers: dict[str, Buffer],
) -> CollectiveNode:
    """Return the gather in its dtype, of a shard that a pass has quantised if need be."""
    (source,), (copy,) = collective.reads, collective.writes
    buffers[copy] = replace(buffers[copy], dtype=dtype)
    if dtypes.gathers_quantised and buffers[source].dtype != dtype:
        source = _quantised(source, collective, dtype, dtypes, passes, buffers)
    return replace(collective, dtype=dtype, reads=(source,))


def _quantised(
    source: str,
    collective: CollectiveNode,
    dtype: str,
    dtypes: Numerics,
    passes: dict[str, ComputeNode],
    buffers: dict[str, Buffer],
) -> str:
    """Return the key of the quantised shard of a stored weight; its pass is in `passes`."""
    key = f"{source} {dtype}"
    if source not in passes:
        local = buffers[source].local
        tensor = Tensor(collective.tensor, local.dims, TensorRole.PARAM, dtype)
        group = quantisation(tensor, collective.phase, source=dtypes.param)
        passes[source] = _pointwise_node(f"quantise/{key}", group, source, key, buffers[source])
        buffers[key] = Buffer(local, dtype, CATEGORY)
    return key


def insert_casts(entries: Sequence[Entry], buffers: dict[str, Buffer]) -> list[Entry]:
    """Insert a pass that casts each gathered copy before its first reader.

    It is for copies that came in another dtype than the one that they are used in; what a ring
    gathers is cast in the ring. The cast copies are added to `buffers`.
    """
    weights = {
        key: collective.tensor
        for entry in entries
        if isinstance(entry, PlannedCollective)
        for collective in entry.collectives
        if collective.purpose is Purpose.WEIGHT and buffers[collective.writes[0]].dtype != COMPUTE
        for key in collective.writes
    }
    if not weights:
        return list(entries)
    cast: dict[str, str] = {}
    result: list[Entry] = []
    for entry in entries:
        compute = entry.compute if isinstance(entry, CollectiveMatmul) else entry
        if isinstance(compute, ComputeNode):
            for key in (
                k for k in compute.reads if _reads_in_compute_dtype(compute.op, weights.get(k, ""))
            ):
                if key not in cast:
                    cast[key] = f"{key} cast"
                    result.append(_cast(compute, key, cast[key], weights[key], buffers))
            compute = replace(
                compute,
                reads=tuple(
                    cast[k] if _reads_in_compute_dtype(compute.op, weights.get(k, "")) else k
                    for k in compute.reads
                ),
            )
            entry = (
                replace(entry, compute=compute) if isinstance(entry, CollectiveMatmul) else compute
            )
        result.append(entry)
    return result


def _reads_in_compute_dtype(op: Op, weight: str) -> bool:
    """Return True if an operation reads a weight in the compute dtype."""
    return any(t.name == weight and t.dtype == COMPUTE for t in op.inputs)


def _cast(
    compute: ComputeNode, key: str, copy: str, weight: str, buffers: dict[str, Buffer]
) -> ComputeNode:
    gathered = buffers[key]
    buffers[copy] = replace(gathered, dtype=COMPUTE, category="cast weights")
    group = conversion(weight_in(compute.op, weight), gathered.dtype, compute.phase)
    return _pointwise_node(f"cast/{key}", group, key, copy, gathered)


def _pointwise_node(
    name: str, group: Pointwise, source: str, made: str, buffer: Buffer
) -> ComputeNode:
    split = tuple((dim, axes) for dim, axes in buffer.local.split().items() if axes)
    return ComputeNode(name=name, op=group, split=split, reads=(source,), writes=(made,))
