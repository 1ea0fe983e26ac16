"""Attention is computed again right before its own backward pass.

Nothing but its readers waits for what a backward pass computes again. Where what follows attention
is saved, the MLP's backward pass needs nothing of attention, so its kernel and its operands are
computed again between the two, and what they leave is not alive beside the MLP's gradients.
"""

from collections.abc import Sequence

from tpusim.base.phase import Phase
from tpusim.lowering.passes.moved_inputs import is_kernel
from tpusim.partition import Node


def recompute_late(nodes: Sequence[Node]) -> list[Node]:
    """Move what attention's backward pass first needs of recomputation right before that.

    What is computed of it follows. Bodies without one kernel's backward pass stay as they are, and
    so do those whose recomputation is needed before.
    """
    needed = _needed(nodes)
    kernels = [place for place, node in enumerate(nodes) if is_kernel(node)]
    backward = [place for place in kernels if nodes[place].phase is Phase.BACKWARD]
    if len(backward) != 1:
        return list(nodes)
    first = min((needed[place] for place in kernels if place in needed), default=backward[0])
    kept: list[Node] = []
    late: list[Node] = []
    made: set[str] = set()
    for place, node in enumerate(nodes[:first]):
        reads = not made.isdisjoint(node.reads)
        if reads and needed.get(place, 0) < first:
            return list(nodes)
        if reads or needed.get(place) == first:
            late.append(node)
            made.update(node.writes)
        else:
            kept.append(node)
    return [*kept, *late, *nodes[first:]]


def _needed(nodes: Sequence[Node]) -> dict[int, int]:
    """Return the places of recomputation, each with that of the first other node that needs it."""
    readers: dict[str, int] = {}
    found: dict[int, int] = {}
    for place, node in reversed(list(enumerate(nodes))):
        first = place
        if node.phase is Phase.RECOMPUTE:
            first = min((readers.get(key, len(nodes)) for key in node.writes), default=len(nodes))
            found[place] = first
        for key in node.reads:
            readers[key] = min(first, readers.get(key, first))
    return found
