"""A matmul beside each sum of activations that is computed again on the SparseCore."""

from collections.abc import Sequence
from typing import TypeGuard

from tpusim.base.phase import Phase
from tpusim.lowering.body_entries import Entry, PlannedCollective
from tpusim.lowering.decisions import Body
from tpusim.lowering.observed.carried_gathers import is_matmul
from tpusim.partition import Purpose
from tpusim.program import CollectiveKind, Mode


def matmul_beside_sums(entries: Sequence[Entry], body: Body) -> list[Entry]:
    """Return the entries with the next matmul that can run before the reader of each sum.

    It is the next one that needs nothing that waits for the sum. So the gradient of the MLP's
    hidden activations is multiplied while the attention's output is summed again (four of four
    programs over `tensor` on 7x 2x2x4 to 4x4x4, libtpu 0.0.42.1). Sums of gradients have matmuls
    for weights beside them there, whose order decides HBM as well: plans leave these last.
    """
    result = list(entries)
    moved: set[str] = set()
    for entry in entries:
        if not _is_sum(entry, body):
            continue
        place = result.index(entry)
        reader = _first_reader(result, place)
        found = _independent(result, entry, reader, moved)
        if found is not None:
            moved.add(result[found].name)
            result.insert(reader, result.pop(found))
    return result


def _is_sum(entry: Entry, body: Body) -> TypeGuard[PlannedCollective]:
    if not isinstance(entry, PlannedCollective) or entry.mode is not Mode.ASYNC:
        return False
    first = entry.collectives[0]
    return (
        first.kind is CollectiveKind.ALL_REDUCE
        and first.purpose is Purpose.ACTIVATION
        and first.phase is Phase.RECOMPUTE
        and body.over(first.axes).offloaded
    )


def _first_reader(entries: Sequence[Entry], place: int) -> int:
    """Return the place of the first entry that reads a result of the one at `place`."""
    made = set(entries[place].writes)
    after = range(place + 1, len(entries))
    return next((i for i in after if not made.isdisjoint(entries[i].reads)), len(entries))


def _independent(
    entries: Sequence[Entry], one: PlannedCollective, reader: int, moved: set[str]
) -> int | None:
    """Return the place of the first matmul after `reader` that needs nothing made since `one`."""
    waiting = set(one.writes)
    for place in range(reader, len(entries)):
        entry = entries[place]
        if is_matmul(entry) and entry.name not in moved and waiting.isdisjoint(entry.reads):
            return place
        waiting.update(entry.writes)
    return None
