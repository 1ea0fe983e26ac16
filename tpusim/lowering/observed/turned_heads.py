"""The head that is the embedding: the gradient of the logits is copied for the table's ring."""

from collections.abc import Sequence
from dataclasses import replace

from tpusim.graph import Einsum, plain_dim
from tpusim.lowering.body_entries import CollectiveMatmul, Entry
from tpusim.lowering.decisions import Body, LoweringDecisions, is_unrolled
from tpusim.lowering.observed.exchange_copies import turned_copy
from tpusim.plan import Axes

_AS_IT_IS = ("v6e", "7x")
"""The generations whose rings read it in the layout in which the other matmul does."""


def turn_heads(entries: Sequence[Entry], body: Body) -> list[Entry]:
    """Insert a copy of the gradient of the logits into the layout that the ring of a table reads.

    The rows of the ring's result are words, which the gradient has last. The copy runs as soon as
    the gradient of the norm is there, also where the ring waits for the layers (19 of 19 programs
    on v4, v5e and v5p, none of 8 on v6e and 7x, libtpu 0.0.42.1).
    """
    result = list(entries)
    for ring in [entry for entry in entries if _of_table(entry)]:
        assert isinstance(ring, CollectiveMatmul)
        if not body.ask(_is_turned, ring.collective.axes):
            continue
        key, *others = ring.compute.reads
        turned = f"{key} turned"
        body.buffers[turned] = body.buffers[key]
        at = result.index(ring)
        users = (i for i, one in enumerate(result[:at]) if key in (*one.reads, *one.writes))
        place = max(users, default=-1)
        compute = replace(ring.compute, reads=(turned, *others))
        result[at] = replace(ring, compute=compute)
        op = ring.compute.op
        copy = turned_copy(
            f"{ring.compute.name}/turn", op.inputs[0], op.phase, key, turned, body.buffers
        )
        result.insert(min(place + 1, at), copy)
    return result


def _of_table(entry: Entry) -> bool:
    """Return True for a ring that scatters the gradient of a table, a word in each row."""
    if not isinstance(entry, CollectiveMatmul) or entry.gathers:
        return False
    op = entry.compute.op
    return isinstance(op, Einsum) and plain_dim(op.output.dims[0]) == "vocab"


def _is_turned(decisions: LoweringDecisions, axes: Axes) -> bool:
    return not is_unrolled(decisions, axes) and decisions.chip.generation not in _AS_IT_IS
