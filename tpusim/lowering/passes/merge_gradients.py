"""Merging the reductions of small gradients."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from tpusim.lowering.body_entries import Entry, PlannedCollective
from tpusim.lowering.collective_choice import REDUCTIONS
from tpusim.lowering.decisions import Body, is_at_most
from tpusim.partition import CollectiveNode, Purpose, is_across
from tpusim.program import CollectiveKind, Mode

SMALL_GRADIENT, SMALL_SHARD = 4 * 2.0**20, 2.0**20
"""Bytes up to which gradients are merged into one all-reduce at the end of the body (480B encoder:
wk, wv and the norms in one of 1 MiB), and those of which each device keeps a shard. Reduce-scatters
of 2 MiB and more stand alone on v4, v5e, v5p and v6e (80 of 80 in 22 compiled plans), all-reduces
of 2 MiB over `data` do not (v5e 4x4; libtpu 0.0.42.1)."""


def largest_merged(kind: CollectiveKind) -> float:
    """Return the bytes up to which a reduction of a gradient is merged with others."""
    return SMALL_SHARD if kind is CollectiveKind.REDUCE_SCATTER else SMALL_GRADIENT


def merge_gradients(entries: Sequence[Entry], body: Body) -> list[Entry]:
    """Reduce small gradients in one all-reduce per group of axes at the end of the body.

    Gradients that read another's result come in a later all-reduce, and so does what reduces them
    across slices. Other readers of the results (an implicit gather, a sum of two contributions)
    come last, with all that depends on them.
    """
    chosen = merged_gradients(body)
    merged: dict[tuple[int, CollectiveKind, tuple[str, ...]], list[PlannedCollective]] = {}
    kept: list[Entry] = []
    followers: list[Entry] = []
    depth: dict[str, int] = {}
    late: set[str] = set()
    for entry in entries:
        after = max((depth[key] for key in entry.reads if key in depth), default=-1)
        is_late = not late.isdisjoint(entry.reads)
        if (
            isinstance(entry, PlannedCollective)
            and entry.collectives[0].name in chosen
            and not is_late
        ):
            entry = _whole(entry)
            key = (after + 1, entry.collectives[0].kind, entry.collectives[0].over)
            merged.setdefault(key, []).append(entry)
            depth |= dict.fromkeys(entry.writes, after + 1)
        elif is_late or after >= 0:
            followers.append(entry)
            late.update(entry.writes)
        else:
            kept.append(entry)
    in_order = sorted(merged.items(), key=lambda item: item[0][0])
    return [*kept, *(_as_one(alike) for _, alike in in_order), *followers]


def _whole(entry: PlannedCollective) -> PlannedCollective:
    """Return a merged reduction within the slice as a synchronous all-reduce."""
    first = entry.collectives[0]
    if is_across(first.axes) or first.kind is CollectiveKind.ALL_GATHER:
        return entry
    return PlannedCollective((replace(first, kind=CollectiveKind.ALL_REDUCE),), Mode.SYNC)


def _as_one(alike: Sequence[PlannedCollective]) -> PlannedCollective:
    return replace(
        alike[0],
        collectives=tuple(collective for entry in alike for collective in entry.collectives),
    )


def merged_gradients(body: Body) -> frozenset[str]:
    """Return the names of gradient reductions that are merged at the end of the body.

    Small ones are, and so are the all-reduces of shards over a further axis of the slice, of
    whatever size: one of 104 MiB over `context` for a layer whose seven matrices have been
    scattered over `fsdp` (v6e 4x4, 4 x 4, libtpu 0.0.42.1). A shard that crosses slices, and is
    gathered after, goes with the reduction that left it.
    """
    merged: set[str] = set()
    left: set[str] = set()
    scattered: set[str] = set()
    for collective in body.collectives:
        if collective.purpose is not Purpose.GRADIENT or not (
            collective.kind in REDUCTIONS or collective.asked
        ):
            continue
        alone = collective.kind in REDUCTIONS and not is_across(collective.axes)
        small = body.ask(is_at_most, collective, largest_merged(collective.kind))
        if small if alone else not left.isdisjoint(collective.reads):
            merged.add(collective.name)
            left.update(collective.writes)
        elif alone and _is_shard(body, collective, scattered):
            merged.add(collective.name)
        if collective.kind is CollectiveKind.REDUCE_SCATTER:
            scattered.update(collective.writes)
    return frozenset(merged)


def _is_shard(body: Body, collective: CollectiveNode, scattered: Collection[str]) -> bool:
    """Return True if an all-reduce sums shards of a layer, one after the other on the core."""
    waits = body.over(collective.axes).reduce is not Mode.ASYNC
    alike = collective.kind is CollectiveKind.ALL_REDUCE and collective.reads[0] in scattered
    return body.looped and waits and alike
