"""The gradient of a weight runs before the product that writes over what it reads.

A matmul for a gradient computes an activation function that is recomputed as it reads (see
`fused_results`), so it needs the function's operand; and the matmul after it, for the gradient of
the same operand, writes over that in its epilogue. Programs have the first of the two first, so
that one buffer as wide as the MLP is alive and not two.
"""

from collections.abc import Sequence

from tpusim.lowering.body_entries import Entry
from tpusim.lowering.decisions import Body, LoweringDecisions
from tpusim.lowering.fused_results import fused_results
from tpusim.partition import ComputeNode


def gradient_before_overwrite(entries: Sequence[Entry], body: Body) -> list[Entry]:
    """Move matmuls that compute their operand as they read before what writes over its source."""
    fused = fused_results(entries, ())
    result = list(entries)
    for key in sorted(fused.again):
        sources = [one for one in fused.groups[key] if body.ask(_same_size, one, key)]
        if len(sources) == 1:
            for reader in [entry for entry in result if key in entry.reads]:
                _move(result, reader, sources[0])
    return result


def _move(entries: list[Entry], matmul: Entry, source: str) -> None:
    """Move a matmul before the one whose epilogue reads its source, if that comes earlier."""
    at = next(place for place, entry in enumerate(entries) if entry is matmul)
    for place, entry in enumerate(entries[:at]):
        if isinstance(entry, ComputeNode) and entry.epilogue and source in entry.reads[2:]:
            made = {key for later in entries[place:at] for key in later.writes}
            if made.isdisjoint(matmul.reads):
                entries.insert(place, entries.pop(at))
            return


def _same_size(decisions: LoweringDecisions, one: str, other: str) -> bool:
    return bool(decisions.buffer_bytes(one) == decisions.buffer_bytes(other))
