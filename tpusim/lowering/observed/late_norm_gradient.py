"""The gradient of the scale of the norm before the head, which waits with the head's.

Only the optimizer reads either, and the scheduler, which works backwards, puts both where it can:
where the matmul for the head's gradient runs after the layers, the sums for the norm's do.
"""

from collections.abc import Sequence
from dataclasses import replace

from tpusim.base.phase import Phase
from tpusim.graph import Einsum, Pointwise
from tpusim.lowering.body_entries import CollectiveMatmul, Entry, PlannedCollective, with_readers
from tpusim.lowering.decisions import Body
from tpusim.partition import ComputeNode, LoopNode


def late_norm_gradient(entries: Sequence[Entry], body: Body) -> list[Entry]:
    """Sum the gradient of a norm's scale after the matmul for the head's gradient, if it waits.

    What the norm was given and the gradient of what it made are held until then. What reads the
    sums follows them.
    """
    last = max((i for i, entry in enumerate(entries) if isinstance(entry, LoopNode)), default=0)
    late = (i for i in range(last + 1, len(entries)) if _multiplies(entries[i], body))
    head = next(late, 0)
    collected = {
        k for e in entries if isinstance(e, PlannedCollective | CollectiveMatmul) for k in e.writes
    }
    result = list(entries)
    for place, entry in enumerate(entries[:last] if head else ()):
        if _is_of_norm(entry, entries[head]) and entry.reads[0] not in collected:
            assert isinstance(entry, ComputeNode)
            result[place], late_one = _apart(entry)
            early = {i for i in range(place + 1, head) if _reads(entries[i], late_one)}
            kept, readers = with_readers(result[: head + 1], early)
            return [*kept, late_one, *readers, *result[head + 1 :]]
    return result


def _reads(entry: Entry, maker: Entry) -> bool:
    return not set(maker.writes).isdisjoint(entry.reads)


def _multiplies(entry: Entry, body: Body) -> bool:
    if isinstance(entry, CollectiveMatmul):
        return body.over(entry.collective.axes).offloaded
    return (
        isinstance(entry, ComputeNode)
        and isinstance(entry.op, Einsum)
        and entry.phase is Phase.BACKWARD
    )


def _is_of_norm(entry: Entry, head: Entry) -> bool:
    """Return True for the gradient of the norm whose result the head's gradient reads."""
    if not (isinstance(entry, ComputeNode) and isinstance(entry.op, Pointwise)):
        return False
    if not entry.op.inputs or entry.op.inputs[0].primal not in head.reads:
        return False
    small = sum(len(tensor.dims) == 1 for tensor in entry.op.outputs)
    own = bool(entry.op.over) and not entry.epilogue and entry.phase is Phase.BACKWARD
    return own and 0 < small < len(entry.op.outputs)


def _apart(node: ComputeNode) -> tuple[ComputeNode, ComputeNode]:
    """Return a norm's gradient as that of what it was given, and those of its scale and shift."""
    op = node.op
    assert isinstance(op, Pointwise)
    pairs = list(zip(op.outputs, node.writes, strict=True))
    wide = [(t, key) for t, key in pairs if len(t.dims) > 1]
    small = [(t, key) for t, key in pairs if len(t.dims) == 1]
    first, second = (
        replace(node, op=replace(op, outputs=tuple(t for t, _ in some), flops=op.flops / 2),
                writes=tuple(key for _, key in some))
        for some in (wide, small)
    )  # fmt: skip
    return first, replace(second, name=f"{node.name}/scale")
