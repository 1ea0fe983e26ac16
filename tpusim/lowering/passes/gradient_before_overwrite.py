"""The gradient of a weight runs before the product that writes over what it reads.

A matmul or convolution for a gradient reads the input of its layer, or computes it of what the
layer before made (see `fused_results`). Where the product after it, for the gradient of that input,
has the derivative of an activation function in its epilogue, that reads the same tensor and can
write over it. Programs have the first of the two first, so that one tensor is alive and not two,
where the product sums the gradient of a bias too (not in 16 MLPs without biases on v5e) and that of
the weight is no larger (not one of 448 MiB for a tensor of 112, v3 4x4).
"""

from collections.abc import Sequence

from tpusim.base.phase import Phase
from tpusim.graph import Convolution, Einsum
from tpusim.lowering.body_entries import Entry
from tpusim.lowering.decisions import Body, LoweringDecisions
from tpusim.lowering.fused_results import fused_results
from tpusim.partition import ComputeNode


def gradient_before_overwrite(entries: Sequence[Entry], body: Body) -> list[Entry]:
    """Move matmuls for the gradients of weights before what writes over their operand."""
    fused = fused_results(entries, ())
    made = [k for entry in entries if entry.phase is not Phase.BACKWARD for k in entry.writes]
    sources = {key: fused.groups[key] if key in fused.again else (key,) for key in made}
    result = list(entries)
    for matmul in [entry for entry in entries if _is_for_weight(entry, body)]:
        for key in matmul.reads[:2]:
            large = [one for one in sources.get(key, ()) if body.ask(_same_size, one, key)]
            if len(large) == 1 and not body.ask(_is_larger, matmul.writes[0], key):
                _move(result, matmul, large[0])
    return result


def _is_for_weight(entry: Entry, body: Body) -> bool:
    return (
        isinstance(entry, ComputeNode)
        and isinstance(entry.op, Einsum | Convolution)
        and entry.op.outputs[0].primal in body.weights
    )


def _move(entries: list[Entry], matmul: Entry, source: str) -> None:
    """Move a matmul before the one whose epilogue is the only other to read its source later."""
    at = next(place for place, entry in enumerate(entries) if entry is matmul)
    for place, entry in enumerate(entries[:at]):
        if _sums_beside(entry) and source in entry.reads[2:]:
            made = {key for later in entries[place:at] for key in later.writes}
            if made.isdisjoint(matmul.reads) and entry.phase is matmul.phase:
                entries.insert(place, entries.pop(at))
                return


def _sums_beside(entry: Entry) -> bool:
    """Return True for a product that sums the gradient of a bias beside its result."""
    return isinstance(entry, ComputeNode) and bool(entry.epilogue) and len(entry.writes) > 1


def _same_size(decisions: LoweringDecisions, one: str, other: str) -> bool:
    return bool(decisions.buffer_bytes(one) == decisions.buffer_bytes(other))


def _is_larger(decisions: LoweringDecisions, one: str, other: str) -> bool:
    return bool(decisions.buffer_bytes(one) > decisions.buffer_bytes(other))
