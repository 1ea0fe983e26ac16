"""The head's gradient before that of its input, where the gathered head is held beside it.

On v5e the whole gradient of the head, if no ring makes it, is multiplied before the matmul that
reads the gathered head again: one tensor of the head more (vocabulary of 262k, data 4 x fsdp 4 on
v5e 4x4: `fusion.205` before `fusion.242`, heap of 4.6 GiB and not 3.6; 19 of 26 plans on v5e that
it changes come nearer to their programs, and 50 of 103 on the others, libtpu 0.0.42.1).
"""

from collections.abc import Sequence
from typing import TypeGuard

from tpusim.base.phase import Phase
from tpusim.graph import Einsum
from tpusim.lowering.body_entries import Entry
from tpusim.lowering.decisions import Body, LoweringDecisions
from tpusim.partition import ComputeNode, LoopNode


def head_gradient_first(entries: Sequence[Entry], body: Body) -> list[Entry]:
    """Move matmuls for gradients before the first other one that reads the same gradient."""
    result = list(entries)
    if not body.ask(_comes_first):
        return result
    loops = (place for place, entry in enumerate(entries) if isinstance(entry, LoopNode))
    for place in range(max(loops, default=0)):
        entry = result[place]
        if _multiplies(entry) and entry.op.outputs[0].primal in body.weights:
            before = (i for i in range(place) if _multiplies(result[i]))
            shared = (i for i in before if set(result[i].reads) & set(entry.reads))
            result.insert(next(shared, place), result.pop(place))
    return result


def _comes_first(decisions: LoweringDecisions) -> bool:
    return decisions.chip.compiler_rules.head_gradient == "first"


def _multiplies(entry: Entry) -> TypeGuard[ComputeNode]:
    return (
        isinstance(entry, ComputeNode)
        and isinstance(entry.op, Einsum)
        and entry.phase is Phase.BACKWARD
    )
