"""Gathering a weight or an activation again where its uses are far apart."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tpusim.base.phase import Phase
from tpusim.graph import Attention, Einsum, Pointwise
from tpusim.lowering.decisions import Body
from tpusim.lowering.passes.backward_order import gradient_rings
from tpusim.lowering.passes.moved_inputs import has_kernel
from tpusim.partition import CollectiveNode, ComputeNode, Node, Purpose
from tpusim.program import CollectiveKind

INSTRUCTIONS_APART = 100
"""Instructions between two uses of an activation above which each has a gather of its own.

`xla_tpu_spmd_threshold_for_allgather_cse`: the partitioner writes a gather for each use, and XLA's
`ScheduleAwareCollectiveOpsCSE` merges two of them unless the longest path between their users is
longer. With full remat and activations sharded over `tensor`, by tokens or by `embed`, the
gradients of Q, K and V have a copy each behind GELU or a gated MLP with SiLU, and none behind ReLU
or without rotations; the input of the MLP is always near (libtpu 0.0.42.1: so in 43 of 54 programs
on v3 to v6e). On 7x the SparseCore gathers each once (2 plans)."""

GRADIENT_PATH = 0.75
"""Of a gradient's vector operations, those on its longest path: each operand has a branch."""

KERNEL_PATH = 12
"""Instructions of a kernel of attention, with its casts and transposes."""

Gathers = Mapping[str, CollectiveNode]
"""The gathers that may be repeated, by what they write."""


def regather(nodes: Sequence[Node], body: Body) -> list[Node]:
    """Gather a copy again where more separates two of its uses than the lowering allows.

    A new copy of a weight, for a matmul with more than `regather_after` of them since the last use,
    serves all later readers; of an activation, each far reader has its own (`INSTRUCTIONS_APART`).
    The new copies are added to the buffers.

    A copy for a ring is gathered beside the first one where no kernel attends, and held until then
    (2 of 2 programs of `fsdp` 8 and 32 on v6e; with a kernel none of 2 on v4 and v5p; libtpu
    0.0.42.1).
    """
    weights, activations = _weights(nodes, body), _activations(nodes, body)
    again = _far_weights(nodes, weights, body) | _far_activations(nodes, activations)
    ahead = _read_ahead(nodes, body) if activations else set()
    newest: dict[str, str] = {}
    result: list[Node] = []
    for node in nodes:
        read = {key: newest[key] for key in node.reads if key in newest and key in weights}
        for key in node.reads:
            if not isinstance(node, ComputeNode) or (node.name, key) not in again:
                continue
            gather = weights.get(key) or activations[key]
            newest[key] = read[key] = f"{newest.get(key, key)} again"
            body.buffers[read[key]] = body.buffers[key]
            early = key in activations and node.name in ahead
            place = result.index(gather) + 1 if early else len(result)
            result.insert(place, _gathered_again(gather, node, read[key]))
        if read:
            node = replace(node, reads=tuple(read.get(key, key) for key in node.reads))
        result.append(node)
    return result


def _read_ahead(nodes: Sequence[Node], body: Body) -> set[str]:
    """Return the names of the matmuls whose copies of an activation are gathered with the first."""
    return set() if has_kernel(nodes) else gradient_rings(body)


def _weights(nodes: Sequence[Node], body: Body) -> Gathers:
    """Return the gathers that are no activation's, in bodies of which a lowering repeats them."""
    if all(low.regather_after is None for low in body.lowerings):
        return {}
    found = _all_gathers(nodes).items()
    return {key: node for key, node in found if node.purpose is not Purpose.ACTIVATION}


def _activations(nodes: Sequence[Node], body: Body) -> Gathers:
    """Return the gathers of recomputed and of backward activations, for gradients of weights."""
    if body.ideal or any(low.offloaded for low in body.lowerings):
        return {}
    multiplied = {
        key
        for node in nodes
        if isinstance(node, ComputeNode) and isinstance(node.op, Einsum)
        if any(tensor.primal in body.weights for tensor in node.op.outputs)
        for key in node.reads
    }
    return {
        key: node
        for key, node in _all_gathers(nodes).items()
        if node.purpose is Purpose.ACTIVATION and node.phase is not Phase.FORWARD
        if key in multiplied
    }


def _all_gathers(nodes: Sequence[Node]) -> Gathers:
    return {
        node.writes[0]: node
        for node in nodes
        if isinstance(node, CollectiveNode) and node.kind is CollectiveKind.ALL_GATHER
    }


def _far_weights(nodes: Sequence[Node], weights: Gathers, body: Body) -> set[tuple[str, str]]:
    """Return (reader, weight) where more matmuls than a lowering allows are since its last use."""
    limits = (low.regather_after for low in body.lowerings)
    limit = min((limit for limit in limits if limit is not None), default=0)
    last: dict[str, int] = {}
    far: set[tuple[str, str]] = set()
    matmuls = 0
    for node in nodes:
        if not isinstance(node, ComputeNode):
            continue
        matmuls += isinstance(node.op, Einsum)
        for key in weights.keys() & set(node.reads):
            if matmuls - last.get(key, matmuls) > limit:
                far.add((node.name, key))
            last[key] = matmuls
    return far


def _far_activations(nodes: Sequence[Node], activations: Gathers) -> set[tuple[str, str]]:
    """Return (reader, activation) for readers far behind the first ones, by the longest path."""
    if not activations:
        return set()
    behind = _instructions_behind(nodes)
    far = set()
    for key in activations:
        readers = [n for n in nodes if isinstance(n, ComputeNode) and key in n.reads]
        first = [n for n in readers if n.phase is readers[0].phase]
        nearest = min(behind[n.name] for n in first)
        far |= {
            (n.name, key)
            for n in readers
            if nearest - behind[n.name] - _instructions(n) > INSTRUCTIONS_APART
        }
    return far


def _instructions_behind(nodes: Sequence[Node]) -> dict[str, float]:
    """Return the instructions on the longest path from each node to the end of the body."""
    readers: defaultdict[str, list[Node]] = defaultdict(list)
    behind: dict[str, float] = {}
    for node in reversed(nodes):
        after = (reader for key in node.writes for reader in readers[key])
        behind[node.name] = max((behind[n.name] + _instructions(n) for n in after), default=0)
        for key in node.reads:
            readers[key].append(node)
    return behind


def _instructions(node: Node) -> float:
    """Return the instructions that a node puts on a path: of a group, its vector operations."""
    if isinstance(node, CollectiveNode):
        return 1 if node.kind is CollectiveKind.ALL_GATHER else 2
    if not isinstance(node, ComputeNode):
        return 1
    groups = [*node.epilogue, node.op] if isinstance(node.op, Pointwise) else list(node.epilogue)
    share = GRADIENT_PATH if node.phase is Phase.BACKWARD else 1
    operations = share * sum(group.flops for group in groups)
    if isinstance(node.op, Pointwise):
        return operations
    return operations + (KERNEL_PATH if isinstance(node.op, Attention) else 1)


def _gathered_again(gather: CollectiveNode, reader: ComputeNode, key: str) -> CollectiveNode:
    return replace(gather, name=f"{gather.kind}/{key}", phase=reader.phase, writes=(key,))
