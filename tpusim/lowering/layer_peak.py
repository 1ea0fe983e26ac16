"""What the operations of a layer hold at most, before it is lowered."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import cast

from tpusim.base.same import Same
from tpusim.lowering.body_entries import Entry
from tpusim.lowering.decisions import LoweringDecisions
from tpusim.lowering.fused_results import fused_results


def holds_at_most(decisions: LoweringDecisions, layer: Same, key: str) -> bool:
    """Return True if a layer's operations never hold more than the bytes of the buffer `key`.

    layer: the nodes of its body.
    """
    nodes = cast(tuple[Entry, ...], layer.objects)
    inside = fused_results(nodes, ()).in_readers(decisions.buffer_bytes, decisions.sizes.group)
    changes: defaultdict[int, float] = defaultdict(float)
    for held, (first, last) in _lives(nodes, inside).items():
        nbytes = decisions.buffer_bytes(held)
        changes[first] += nbytes
        changes[last + 1] -= nbytes
    held_at = accumulate(changes[place] for place in range(len(nodes)))
    return max(held_at, default=0) <= decisions.buffer_bytes(key)


def _lives(
    nodes: tuple[Entry, ...], inside: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[int, int]]:
    """Return the first and the last place of each buffer that a body holds."""
    lives: dict[str, tuple[int, int]] = {}
    for place, node in enumerate(nodes):
        for key in (*node.reads, *node.writes):
            for held in _held_for(key, inside):
                lives[held] = lives.get(held, (place, place))[0], place
    return lives


def _held_for(key: str, inside: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    """Yield the buffers that a reader of `key` needs: what it computes it of, if it does."""
    if key not in inside:
        yield key
    for operand in inside.get(key, ()):
        yield from _held_for(operand, inside)
