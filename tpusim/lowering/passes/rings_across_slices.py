"""Rings of weights that are sharded within the slice and across slices."""

from collections.abc import Sequence
from dataclasses import replace

from tpusim.lowering.decisions import Body
from tpusim.lowering.passes.fuse_collectives import matmuls_for
from tpusim.partition import CollectiveNode, Node
from tpusim.program import CollectiveKind


def rings_across_slices(nodes: Sequence[Node], body: Body) -> list[Node]:
    """Replace the two collectives of a weight by one over both axes, where that becomes a ring.

    The ring has all devices that the weight is sharded over, in the order of the mesh, so that each
    of its permutes crosses slices too. Otherwise the weight crosses slices and the slice one after
    the other. Support: rings over 16 and 32 devices on two slices of v4, v5e and v5p (5 programs,
    libtpu 0.0.42.1); none over 64 and 256, nor where `data` replicates the weights, nor where
    they do not pay (8 programs).
    """
    joined: dict[str, Node] = {}
    gone: set[str] = set()
    for within, across in body.crossing.items():
        both = _joined(within, across)
        if matmuls_for(body, both):
            joined[within.name] = both
            gone.add(across.name)
    return [joined.get(node.name, node) for node in nodes if node.name not in gone]


def _joined(within: CollectiveNode, across: CollectiveNode) -> CollectiveNode:
    """Return the collective over the axes of both, the slices outermost."""
    axes = (*across.axes, *within.axes)
    if within.kind is CollectiveKind.ALL_GATHER:
        return replace(within, axes=axes, reads=across.reads)
    return replace(within, axes=axes, writes=across.writes)
