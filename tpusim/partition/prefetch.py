"""When asynchronous gathers of weights start, and what carries them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeGuard

from tpusim.graph import Attention, Einsum
from tpusim.partition.layout import is_across
from tpusim.partition.passes import Entry, KernelRing, Planned, Ring
from tpusim.partition.template import Calc, Purpose
from tpusim.program import CollectiveKind, Mode


def prefetch(entries: Sequence[Entry], first_sync: bool, kernels_carry: bool) -> list[Entry]:
    """Start each asynchronous weight gather beside the matmul before its own, one at a time.

    A gather starts when the one before it is done, which is when the matmul that needed that one
    starts; no later than where it stands, and not before its operand is there. The first of the
    body has none before it and starts with the body, beside the rings of other weights or the
    router; where no product comes before its reader, nothing carries it, and it is synchronous
    where `first_sync` (the gathers of experts' weights on v6e 4x4 with MaxText's flags and on v5e
    4x4, libtpu 0.0.42.1). Where kernels carry nothing, an attention kernel waits for the gather
    that is under way, and a gather that has only grouped products to run beside is synchronous
    (sorted experts on v5e 4x4). What a gather takes from other slices starts when the gather before
    it does.
    """
    taken = {key for entry in entries if _is_prefetched(entry) for key in entry.reads}
    feeding = [e for e in entries if _is_prefetched(e) and not taken.isdisjoint(e.writes)]
    others = [entry for entry in entries if entry not in feeding]
    ahead = _beside_matmuls(others, feeding, first_sync, kernels_carry)
    result = _one_gather_ahead(ahead, feeding, first_sync)
    return result if kernels_carry else _kernels_wait(result)


def _beside_matmuls(
    entries: Sequence[Entry], feeding: Sequence[Planned], first_sync: bool, kernels_carry: bool
) -> list[Entry]:
    """Start each asynchronous gather beside the matmul before its own.

    feeding: what gathers take from other slices, whose operands must be there too.
    """
    sources = {key: entry.reads for entry in feeding for key in entry.writes}
    starts: dict[int, list[Entry]] = {}
    moved: set[int] = set()
    previous: Planned | None = None
    beside = _behind_synchronous(entries)
    for place, gather in enumerate(entries):
        if not _is_prefetched(gather):
            continue
        start = max(min(beside, place), _after_operand(entries, place, sources))
        user = _first_user(entries, place)
        waits = first_sync if previous is None else not kernels_carry
        if waits and not _carried(entries[start:user], previous is None):
            gather, start = replace(gather, mode=Mode.SYNC), place
        elif previous is not None:
            gather = replace(gather, waits_for=(previous.name,))
        starts.setdefault(start, []).append(gather)
        moved.add(place)
        previous, beside = gather, user
    result: list[Entry] = []
    for place, entry in enumerate(entries):
        result.extend(starts.get(place, ()))
        if place not in moved:
            result.append(entry)
    return result


def _behind_synchronous(entries: Sequence[Entry]) -> int:
    """The place behind the synchronous gathers of weights that stand before the asynchronous."""
    first = next((i for i, entry in enumerate(entries) if _is_prefetched(entry)), 0)
    return max((i + 1 for i in range(first) if _gathers_weight(entries[i])), default=0)


def _gathers_weight(entry: Entry) -> bool:
    return (
        isinstance(entry, Planned)
        and entry.comms[0].kind is CollectiveKind.ALL_GATHER
        and entry.comms[0].purpose is Purpose.WEIGHT
    )


def _one_gather_ahead(
    entries: Sequence[Entry], feeding: Sequence[Planned], first_sync: bool
) -> list[Entry]:
    """Start what each gather takes from other slices, `feeding`, where the gather before starts.

    The first starts right before its own gather, and is synchronous where `first_sync`. None starts
    before its operand is there.
    """
    made = {key: place for place, entry in enumerate(entries) for key in entry.writes}
    left = {key: entry for entry in feeding for key in entry.writes}
    starts: dict[int, list[Entry]] = {}
    start: int | None = None
    previous: Planned | None = None
    for place, entry in enumerate(entries):
        for key in (key for key in entry.reads if key in left):
            part = left.pop(key)
            if previous is not None:
                part = replace(part, waits_for=(previous.name,))
            elif first_sync:
                part = replace(part, mode=Mode.SYNC)
            earliest = max((made[read] + 1 for read in part.reads if read in made), default=0)
            begin = max(place if start is None else start, earliest)
            starts.setdefault(begin, []).append(part)
            previous, start = part, place
    return [e for place, entry in enumerate(entries) for e in (*starts.get(place, ()), entry)]


def _carried(beside: Sequence[Entry], first: bool) -> bool:
    """Whether a gather can go on beside these: the first needs a product, no kernel, to do so."""
    products = [_product(entry) for entry in beside]
    grouped = any(product is not None and product.ragged for product in products)
    return any(p is not None and not p.ragged for p in products) or not (first or grouped)


def _product(entry: Entry) -> Einsum | None:
    calc = entry.calc if isinstance(entry, Ring) else entry
    return calc.op if isinstance(calc, Calc) and isinstance(calc.op, Einsum) else None


def _waiting(entry: Calc | KernelRing, keys: tuple[str, ...]) -> Calc | KernelRing:
    """The entry, which reads `keys` too where it is a kernel of attention."""
    if isinstance(entry, KernelRing):
        calc = entry.calc
        return replace(entry, calc=replace(calc, reads=(*calc.reads, *keys)))
    attends = isinstance(entry.op, Attention)
    return replace(entry, reads=(*entry.reads, *keys)) if attends else entry


def _is_prefetched(entry: Entry) -> TypeGuard[Planned]:
    return (
        isinstance(entry, Planned)
        and entry.mode is Mode.ASYNC
        and entry.comms[0].purpose is Purpose.WEIGHT
    )


def _after_operand(
    entries: Sequence[Entry], place: int, sources: Mapping[str, tuple[str, ...]]
) -> int:
    """The first place at which the operand of the entry at `place` is there, or its own source."""
    reads = {key for read in entries[place].reads for key in (read, *sources.get(read, ()))}
    return max((i + 1 for i in range(place) if reads & set(entries[i].writes)), default=0)


def _first_user(entries: Sequence[Entry], place: int) -> int:
    writes = set(entries[place].writes)
    return next(
        (i for i in range(place + 1, len(entries)) if writes & set(entries[i].reads)), place
    )


def _kernels_wait(entries: Sequence[Entry]) -> list[Entry]:
    """Let attention kernels wait for the gather under way, by reading what it writes.

    A gather is under way until something else has read what it writes.
    """
    result: list[Entry] = []
    under_way: Planned | None = None
    for entry in entries:
        if _is_prefetched(entry) and not is_across(entry.comms[0].axes):
            under_way = entry
        elif under_way and not set(under_way.writes).isdisjoint(entry.reads):
            under_way = None
        elif under_way and isinstance(entry, Calc | KernelRing):
            entry = _waiting(entry, under_way.writes)
        result.append(entry)
    return result
