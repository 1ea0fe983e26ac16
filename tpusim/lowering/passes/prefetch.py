"""Prefetching: the start of asynchronous weight gathers, and the work beside which they run."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeGuard

from tpusim.graph import Attention, Einsum
from tpusim.lowering.body_entries import CollectiveMatmul, Entry, PlannedCollective, RingAttention
from tpusim.lowering.collective_lowering import EVERYTHING, Lowering, Overlap
from tpusim.lowering.decisions import Body
from tpusim.partition import ComputeNode, Purpose, is_across
from tpusim.program import CollectiveKind, Mode


def prefetch(entries: Sequence[Entry], body: Body) -> list[Entry]:
    """Start asynchronous weight gathers ahead of the matmul that reads them, as `Overlap` says.

    With a depth of one, a gather starts when the one before it is done, which is when the matmul
    that reads that one starts; not after its own place, and not before its operand is there. The
    first gathers of a body have none before them and start with the body, beside the rings of other
    weights or the router. Where no matmul comes before its reader, nothing carries such a gather,
    and it is synchronous if it needs a carrier (the gathers of experts' weights on v6e 4x4 with
    MaxText's flags and on v5e 4x4, libtpu 0.0.42.1). If attention carries nothing, an attention
    kernel waits for the gather in flight, and a gather that has only grouped matmuls to run beside
    is synchronous (sorted experts on v5e 4x4). The part of a gather that crosses slices starts when
    the gather before it does.
    """
    overlap = _common(body.lowerings)
    taken = {key for entry in entries if _is_prefetched(entry) for key in entry.reads}
    cross_slice = [e for e in entries if _is_prefetched(e) and not taken.isdisjoint(e.writes)]
    others = [entry for entry in entries if entry not in cross_slice]
    ahead = _beside_matmuls(others, cross_slice, overlap)
    result = _one_gather_ahead(ahead, cross_slice, overlap.needs_carrier)
    return result if overlap.beside_attention else _attention_waits(result)


def _common(lowerings: Sequence[Lowering]) -> Overlap:
    """Return the common overlap of gathers in a body whose groups have several lowerings."""
    overlaps = [low.overlap for low in lowerings]
    return Overlap(
        prefetch_depth=min((one.prefetch_depth for one in overlaps), default=1),
        carried_by=EVERYTHING.intersection(*(one.carried_by for one in overlaps)),
        needs_carrier=all(one.needs_carrier for one in overlaps),
    )


def _beside_matmuls(
    entries: Sequence[Entry], cross_slice: Sequence[PlannedCollective], overlap: Overlap
) -> list[Entry]:
    """Start each asynchronous gather beside the matmul of a gather before it.

    cross_slice: gathers across slices whose results others gather, and which wait for operands too.
    """
    sources = {key: entry.reads for entry in cross_slice for key in entry.writes}
    starts: dict[int, list[Entry]] = {}
    moved: set[int] = set()
    before: deque[tuple[PlannedCollective, int]] = deque(maxlen=overlap.prefetch_depth)
    first = _after_synchronous(entries)
    for place, gather in enumerate(entries):
        if not _is_prefetched(gather):
            continue
        previous, beside = before[0] if len(before) == before.maxlen else (None, first)
        start = max(min(beside, place), _after_operand(entries, place, sources))
        user = _first_user(entries, place)
        picky = overlap.needs_carrier if previous is None else not overlap.beside_attention
        if picky and not _carried(entries[start:user], previous is None):
            gather, start = replace(gather, mode=Mode.SYNC), place
        elif previous is not None:
            gather = replace(gather, after=(previous.name,))
        starts.setdefault(start, []).append(gather)
        moved.add(place)
        before.append((gather, user))
    result: list[Entry] = []
    for place, entry in enumerate(entries):
        result.extend(starts.get(place, ()))
        if place not in moved:
            result.append(entry)
    return result


def _after_synchronous(entries: Sequence[Entry]) -> int:
    """Return the place after the synchronous weight gathers before the first asynchronous one."""
    first = next((i for i, entry in enumerate(entries) if _is_prefetched(entry)), 0)
    return max((i + 1 for i in range(first) if _gathers_weight(entries[i])), default=0)


def _gathers_weight(entry: Entry) -> bool:
    return (
        isinstance(entry, PlannedCollective)
        and entry.collectives[0].kind is CollectiveKind.ALL_GATHER
        and entry.collectives[0].purpose is Purpose.WEIGHT
    )


def _one_gather_ahead(
    entries: Sequence[Entry], cross_slice: Sequence[PlannedCollective], needs_carrier: bool
) -> list[Entry]:
    """Start the part of each gather that crosses slices where the gather before starts.

    The first starts right before its own gather, and is synchronous if it needs a carrier. None
    starts before its operand is there.
    """
    made = {key: place for place, entry in enumerate(entries) for key in entry.writes}
    left = {key: entry for entry in cross_slice for key in entry.writes}
    starts: dict[int, list[Entry]] = {}
    start: int | None = None
    previous: PlannedCollective | None = None
    for place, entry in enumerate(entries):
        for key in (key for key in entry.reads if key in left):
            part = left.pop(key)
            if previous is not None:
                part = replace(part, after=(previous.name,))
            elif needs_carrier:
                part = replace(part, mode=Mode.SYNC)
            earliest = max((made[read] + 1 for read in part.reads if read in made), default=0)
            begin = max(place if start is None else start, earliest)
            starts.setdefault(begin, []).append(part)
            previous, start = part, place
    return [e for place, entry in enumerate(entries) for e in (*starts.get(place, ()), entry)]


def _carried(beside: Sequence[Entry], first: bool) -> bool:
    """Return True if a gather makes progress beside these; the first of a body needs a matmul."""
    matmuls = [matmul for matmul in map(_matmul_of, beside) if matmul is not None]
    grouped = any(matmul.ragged for matmul in matmuls)
    return not all(matmul.ragged for matmul in matmuls) or not (first or grouped)


def _matmul_of(entry: Entry) -> Einsum | None:
    compute = entry.compute if isinstance(entry, CollectiveMatmul) else entry
    return (
        compute.op if isinstance(compute, ComputeNode) and isinstance(compute.op, Einsum) else None
    )


def _waiting(
    entry: ComputeNode | RingAttention, keys: tuple[str, ...]
) -> ComputeNode | RingAttention:
    """Return the entry, which reads `keys` too if it is an attention kernel."""
    if isinstance(entry, RingAttention):
        compute = entry.compute
        return replace(entry, compute=replace(compute, reads=(*compute.reads, *keys)))
    attends = isinstance(entry.op, Attention)
    return replace(entry, reads=(*entry.reads, *keys)) if attends else entry


def _is_prefetched(entry: Entry) -> TypeGuard[PlannedCollective]:
    return (
        isinstance(entry, PlannedCollective)
        and entry.mode is Mode.ASYNC
        and entry.collectives[0].purpose is Purpose.WEIGHT
    )


def _after_operand(
    entries: Sequence[Entry], place: int, sources: Mapping[str, tuple[str, ...]]
) -> int:
    """Return the first place at which the operand of the entry at `place` is ready."""
    reads = {key for read in entries[place].reads for key in (read, *sources.get(read, ()))}
    return max((i + 1 for i in range(place) if reads & set(entries[i].writes)), default=0)


def _first_user(entries: Sequence[Entry], place: int) -> int:
    writes = set(entries[place].writes)
    return next(
        (i for i in range(place + 1, len(entries)) if writes & set(entries[i].reads)), place
    )


def _attention_waits(entries: Sequence[Entry]) -> list[Entry]:
    """Let attention kernels wait for the gather in flight, by reading what it writes.

    A gather is in flight until something else has read what it writes.
    """
    result: list[Entry] = []
    in_flight: PlannedCollective | None = None
    for entry in entries:
        if _is_prefetched(entry) and not is_across(entry.collectives[0].axes):
            in_flight = entry
        elif in_flight and not set(in_flight.writes).isdisjoint(entry.reads):
            in_flight = None
        elif in_flight and isinstance(entry, ComputeNode | RingAttention):
            entry = _waiting(entry, in_flight.writes)
        result.append(entry)
    return result
