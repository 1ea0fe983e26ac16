"""Copies behind exchanges of tokens for heads: what came lies in the order of its senders."""

from collections.abc import Sequence
from typing import TypeGuard

from tpusim.partition.passes import Entry, Planned
from tpusim.partition.relayout import copied_around
from tpusim.partition.scope import HEADS, TOKENS
from tpusim.partition.template import Buffer
from tpusim.program import CollectiveKind


def with_turned_heads(entries: Sequence[Entry], buffers: dict[str, Buffer]) -> list[Entry]:
    """The entries with a pass through HBM behind each all-to-all of an attention kernel's tensors.

    All four forward and all eight backward have one in a compiled program of 32 heads and 8 K/V
    heads over 4 devices (sequences of 32,768, v6e 4x4, libtpu 0.0.42.1), besides the copies into
    the kernel's layout and out of it. The copies are added to `buffers`.
    """
    result: list[Entry] = []
    for entry in entries:
        if _is_exchange(entry):
            result.extend(copied_around(entry, (False, True), "turn", buffers))
        else:
            result.append(entry)
    return result


def _is_exchange(entry: Entry) -> TypeGuard[Planned]:
    if not isinstance(entry, Planned) or entry.comms[0].kind is not CollectiveKind.ALL_TO_ALL:
        return False
    dims = set(entry.comms[0].payload.dims)
    return not dims.isdisjoint(HEADS) and not dims.isdisjoint(TOKENS)
