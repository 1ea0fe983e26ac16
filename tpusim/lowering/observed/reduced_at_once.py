"""Reductions of a gradient over several axes as one all-reduce."""

from collections.abc import Sequence
from dataclasses import replace

from tpusim.graph import Scatter
from tpusim.lowering.collective_choice import REDUCTIONS
from tpusim.lowering.decisions import Body
from tpusim.partition import CollectiveNode, Node, Purpose, is_across
from tpusim.program import CollectiveKind


def reduce_at_once(nodes: Sequence[Node], body: Body) -> list[Node]:
    """All-reduce a gradient over all its axes, of which each device takes its part.

    It takes the place of a reduce-scatter over the axes that shard the weight, and of an all-reduce
    of the shards over others of the slice, where the SparseCore reduces. Of compiled plans with
    `data` and `fsdp` (libtpu 0.0.42.1), 11 of 11 on 7x do this, and one of some 40 on v2 to v6e,
    for K and V alone. A loss in tiles does so in each tile (three of three on 7x). So is the
    gradient of a table to which each device adds its own tokens, on all chips (15 of 15 programs of
    plain style with `data` and `fsdp` on v2 to v6e).
    """
    tables = {
        key
        for compute in body.computes
        if isinstance(compute.op, Scatter) and body.compiler.style == "plain"
        for key in compute.writes
    }
    if any(low.offloaded for low in body.lowerings):
        nodes = _summed_whole(nodes, body)
    further = {node.reads[0]: node for node in body.collectives if _is_further(body, node)}
    first = [
        node
        for node in body.collectives
        if node.kind is CollectiveKind.REDUCE_SCATTER
        and _is_gradient(node)
        and (node.reads[0] in tables or body.over(node.axes).offloaded)
        and node.writes[0] in further
    ]
    merged = {node.name: _merged(body, node, further[node.writes[0]]) for node in first}
    merged |= {node.name: wider for node in body.collectives if (wider := _widened(body, node))}
    gone = {further[node.writes[0]].name for node in first}
    return [merged.get(node.name, node) for node in nodes if node.name not in gone]


def _widened(body: Body, node: CollectiveNode) -> CollectiveNode | None:
    """Return a reduce-scatter of a term over all the axes that it is partial over, if it is not.

    The others are left for the sum of all tiles, whose all-reduce of shards stays: it moves what a
    tile does once, for a part of the devices.
    """
    if not (_is_gradient(node) and node.kind is CollectiveKind.REDUCE_SCATTER):
        return None
    maker = next((one for one in body.computes if node.reads[0] in one.writes), None)
    if maker is None or not body.over(node.axes).offloaded:
        return None
    (made, *_), split = maker.op.outputs, dict(maker.split)
    partial = {axis for dim in split.keys() - {*made.dims} for axis in split[dim]}
    read = [each for each in body.nodes if node.writes[0] in each.reads]
    left = partial - {*node.axes}
    if not left or is_across(tuple(left)) or any(isinstance(one, CollectiveNode) for one in read):
        return None
    return _merged(body, node, replace(node, axes=tuple(partial)))


def _summed_whole(nodes: Sequence[Node], body: Body) -> list[Node]:
    """Return the nodes with an all-reduce for each gradient that is scattered, then gathered.

    So are those of tied heads to which a lookup's rows are added (2 of 2 programs on 7x).
    """
    gathers = {
        node.reads[0]: node
        for node in body.collectives
        if node.kind is CollectiveKind.ALL_GATHER and node.purpose is Purpose.GRADIENT
    }
    first = {
        node.writes[0]: node
        for node in body.collectives
        if node.writes[0] in gathers and body.over(node.axes).offloaded and _is_gradient(node)
    }
    return [
        _merged(body, first[node.reads[0]], node)
        if isinstance(node, CollectiveNode) and node in gathers.values() and node.reads[0] in first
        else node
        for node in nodes
        if node.name not in {one.name for one in first.values()}
    ]


def _is_gradient(node: CollectiveNode) -> bool:
    return node.purpose is Purpose.GRADIENT and node.kind in REDUCTIONS and not is_across(node.axes)


def _is_further(body: Body, node: CollectiveNode) -> bool:
    """Return True if it all-reduces what nothing else reads."""
    readers = [each for each in body.nodes if node.reads[0] in each.reads]
    return _is_gradient(node) and node.kind is CollectiveKind.ALL_REDUCE and len(readers) == 1


def _merged(body: Body, scatter: CollectiveNode, reduce: CollectiveNode) -> CollectiveNode:
    axes = tuple(axis for axis in body.sharding.mesh if axis in (*scatter.axes, *reduce.axes))
    return replace(
        scatter,
        name=f"{CollectiveKind.ALL_REDUCE}/{reduce.writes[0]}",
        kind=CollectiveKind.ALL_REDUCE,
        axes=axes,
        writes=reduce.writes,
        dim="",
    )
