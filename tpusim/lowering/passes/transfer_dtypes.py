"""Transfer dtypes: of weights while they are gathered, of gradients while they are reduced.

A weight is gathered in one of three dtypes. In the compute dtype: the local shards are cast once a
step, and the copies need nothing more. As it is stored: no shard is cast, and a pass casts each
gathered copy. In the dtype of quantised matmuls: a pass over the shard quantises it, first thing in
the body, and no pass is needed after; AQT calls the use of one quantised copy in the forward and
the backward matmul `use_fwd_quant`. Scales are sent too and not counted: one for each channel.

A weight's gradient leaves its matmul in the dtype in which it is reduced, and is stacked in another
by what writes the stack, without a pass of its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tpusim.base.phase import Phase
from tpusim.graph import COMPUTE, Op, Pointwise, Tensor, TensorRole
from tpusim.lowering.body_entries import CollectiveMatmul, Entry, PlannedCollective
from tpusim.lowering.passes.quantise import CATEGORY, mark_quantised, quantisation
from tpusim.partition import (
    Buffer,
    CollectiveNode,
    ComputeNode,
    Node,
    PartitionedGraph,
    Purpose,
    body_nodes,
)
from tpusim.plan import Numerics

GRADIENTS = "unreduced gradients"


def reduced_in(dtypes: Numerics, buffers: Mapping[str, Buffer]) -> dict[str, Buffer]:
    """Return the buffers, with unreduced gradients in the dtype of their reduction."""
    dtype = _tensor_dtype(dtypes.of("reduce"), dtypes)
    return {
        key: replace(buffer, dtype=dtype) if _is_term(buffer) else buffer
        for key, buffer in buffers.items()
    }


def _is_term(buffer: Buffer) -> bool:
    """Return True for an unreduced gradient; sums over iterations have a dtype of their own."""
    return buffer.category == GRADIENTS and buffer.dtype == COMPUTE


def set_transfer_dtypes(
    nodes: Sequence[Node], dtypes: Numerics, weights: frozenset[str], buffers: dict[str, Buffer]
) -> list[Node]:
    """Set the dtypes of collectives of weights and gradients.

    Passes that quantise shards come first; `buffers` takes their results and the dtypes of copies.
    """
    gathers = gather_dtypes(nodes, dtypes)
    sums = _tensor_dtype(dtypes.of("reduce"), dtypes)
    passes: dict[str, ComputeNode] = {}
    result: list[Node] = []
    for node in nodes:
        if isinstance(node, ComputeNode) and sums != COMPUTE:
            op = (
                _with_gradient_dtype(node.op, weights, sums)
                if isinstance(node.op, Pointwise)
                else node.op
            )
            after = tuple(_with_gradient_dtype(group, weights, sums) for group in node.epilogue)
            node = replace(node, op=op, epilogue=after)
        elif isinstance(node, CollectiveNode) and node.purpose is Purpose.GRADIENT:
            node = replace(node, dtype=sums) if node.dtype == COMPUTE else node
        elif isinstance(node, CollectiveNode) and node.name in gathers:
            node = _gathered(node, gathers[node.name], dtypes, passes, buffers)
        result.append(node)
    return [*passes.values(), *result]


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
                _weight(compute.op, collective.tensor).dtype == dtype
                for compute in computes
                if key in compute.reads
            ]
        fit[collective.name] = all(fits)
    return dict.fromkeys((name for name, fits in fit.items() if fits), dtype)


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
    group = conversion(_weight(compute.op, weight), gathered.dtype, compute.phase)
    return _pointwise_node(f"cast/{key}", group, key, copy, gathered)


def conversion(tensor: Tensor, source: str, phase: Phase) -> Pointwise:
    """Return the pass that casts `tensor` from the dtype `source`: one conversion per element."""
    cast = replace(tensor, name=f"{tensor.name} cast")
    given = (replace(tensor, dtype=source),)
    return Pointwise(f"{tensor.name}/cast", given, (cast,), 0.0, keeps="", phase=phase)


def _pointwise_node(
    name: str, group: Pointwise, source: str, made: str, buffer: Buffer
) -> ComputeNode:
    split = tuple((dim, axes) for dim, axes in buffer.local.split().items() if axes)
    return ComputeNode(name=name, op=group, split=split, reads=(source,), writes=(made,))


def _weight(op: Op, name: str) -> Tensor:
    return next(tensor for tensor in op.inputs if tensor.name == name)


def _with_gradient_dtype(op: Pointwise, weights: frozenset[str], dtype: str) -> Pointwise:
    """Return the group with its weight gradients in `dtype`."""
    inputs, outputs = (
        tuple(replace(t, dtype=dtype) if t.primal in weights else t for t in tensors)
        for tensors in (op.inputs, op.outputs)
    )
    return replace(op, inputs=inputs, outputs=outputs)


def _tensor_dtype(dtype: str, dtypes: Numerics) -> str:
    """Return the dtype as tensors name it, which call the plan's own `compute`."""
    return COMPUTE if dtype == dtypes.compute else dtype
