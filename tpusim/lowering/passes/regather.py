"""Gathering a weight or an activation again where its uses are far apart."""

from collections.abc import Sequence
from dataclasses import replace

from tpusim.base.phase import Phase
from tpusim.graph import Einsum
from tpusim.lowering.decisions import Body
from tpusim.lowering.passes.backward_order import gradient_rings
from tpusim.lowering.passes.moved_inputs import has_kernel
from tpusim.partition import CollectiveNode, ComputeNode, Node, Purpose
from tpusim.program import CollectiveKind

ACTIVATION_AFTER = 6
"""Matmuls between two uses of a gathered activation, of which more have it gathered again.

The input of attention has 9 to 30 between its recomputation and its weight gradients, and is
gathered again; that of the MLP has 2 to 4, and is kept: so in the compiled plans with full remat
and activations sharded over `tensor`, by tokens or by `embed`, on v3 to v6e (17), and not on 7x
(2; libtpu 0.0.42.1)."""


def regather(nodes: Sequence[Node], body: Body) -> list[Node]:
    """Gather a copy again where more matmuls than the lowering allows separate two of its uses.

    A weight's new copy serves all later readers. Of an activation, each matmul of the backward pass
    from the first far one on has a copy of its own (that of each of Q, K and V, one after the
    other). The new copies are added to the buffers.

    A copy for a ring is gathered beside the first one where no kernel attends, and held until then
    (2 of 2 programs of `fsdp` 8 and 32 on v6e; with a kernel none of 2 on v4 and v5p; libtpu
    0.0.42.1).
    """
    limits = _limits(nodes, body)
    if not limits:
        return list(nodes)
    last: dict[str, int] = {}
    renamed: dict[str, str] = {}
    result: list[Node] = []
    ahead = _read_ahead(nodes, body)
    matmuls = 0
    for node in nodes:
        if isinstance(node, ComputeNode):
            matmuls += isinstance(node.op, Einsum)
            for key in node.reads:
                if key not in limits:
                    continue
                gather, limit = limits[key]
                far = matmuls - last.setdefault(key, matmuls) > limit
                if far or (key in renamed and gather.purpose is not Purpose.WEIGHT):
                    renamed[key] = f"{renamed.get(key, key)} again"
                    body.buffers[renamed[key]] = body.buffers[key]
                    again = _gathered_again(gather, node, renamed[key])
                    early = node.name in ahead and gather.purpose is Purpose.ACTIVATION
                    result.insert(result.index(gather) + 1 if early else len(result), again)
                last[key] = matmuls
            if not renamed.keys().isdisjoint(node.reads):
                node = replace(node, reads=tuple(renamed.get(key, key) for key in node.reads))
        result.append(node)
    return result


def _read_ahead(nodes: Sequence[Node], body: Body) -> set[str]:
    """Return the names of the matmuls whose copies of an activation are gathered with the first."""
    return set() if has_kernel(nodes) else gradient_rings(body)


def _limits(nodes: Sequence[Node], body: Body) -> dict[str, tuple[CollectiveNode, int]]:
    """Return the gathered copies that may be gathered again, each with its gather and limit."""
    allowed = [low.regather_after for low in body.lowerings if low.regather_after is not None]
    kept = body.ideal or any(low.offloaded for low in body.lowerings)
    multiplied = {
        key
        for node in nodes
        if isinstance(node, ComputeNode) and isinstance(node.op, Einsum)
        if any(tensor.primal in body.weights for tensor in node.op.outputs)
        for key in node.reads
    }
    found = {}
    for node in nodes:
        if not isinstance(node, CollectiveNode) or node.kind is not CollectiveKind.ALL_GATHER:
            continue
        again = node.purpose is Purpose.ACTIVATION and node.phase is not Phase.FORWARD
        if again and node.writes[0] in multiplied and not kept:
            found[node.writes[0]] = (node, ACTIVATION_AFTER)
        elif node.purpose is not Purpose.ACTIVATION and allowed:
            found[node.writes[0]] = (node, min(allowed))
    return found


def _gathered_again(gather: CollectiveNode, reader: ComputeNode, key: str) -> CollectiveNode:
    return replace(gather, name=f"{gather.kind}/{key}", phase=reader.phase, writes=(key,))
