"""Gathering a weight again where its uses are far apart."""

from collections.abc import Sequence
from dataclasses import replace

from tpusim.graph import Einsum
from tpusim.lowering.decisions import Body
from tpusim.partition import CollectiveNode, ComputeNode, Node
from tpusim.program import CollectiveKind


def regather(nodes: Sequence[Node], body: Body) -> list[Node]:
    """Gather a copy again where more matmuls than the lowering allows separate two of its uses.

    The new copies are added to the buffers.
    """
    limits = [low.regather_after for low in body.lowerings if low.regather_after is not None]
    if not limits:
        return list(nodes)
    gathers = {
        node.writes[0]: node
        for node in nodes
        if isinstance(node, CollectiveNode) and node.kind is CollectiveKind.ALL_GATHER
    }
    last: dict[str, int] = {}
    renamed: dict[str, str] = {}
    result: list[Node] = []
    matmuls = 0
    for node in nodes:
        if isinstance(node, ComputeNode):
            matmuls += isinstance(node.op, Einsum)
            for key in node.reads:
                if key in gathers and matmuls - last.setdefault(key, matmuls) > min(limits):
                    renamed[key] = f"{renamed.get(key, key)} again"
                    body.buffers[renamed[key]] = body.buffers[key]
                    result.append(_gathered_again(gathers[key], node, renamed[key]))
                last[key] = matmuls
            node = replace(node, reads=tuple(renamed.get(key, key) for key in node.reads))
        result.append(node)
    return result


def _gathered_again(gather: CollectiveNode, reader: ComputeNode, key: str) -> CollectiveNode:
    return replace(gather, name=f"{gather.kind}/{key}", phase=reader.phase, writes=(key,))
