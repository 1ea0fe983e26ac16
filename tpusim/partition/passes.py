"""Rewrites of a body before it is lowered: gathering again, merging reductions, prefetching.

Each pass takes the entries of a body in order and returns them in their new order.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeGuard

from tpusim.graph import Attention, Einsum
from tpusim.partition.template import Buffer, Calc, Comm, Nest, Node, Purpose
from tpusim.program import CollectiveKind, Mode


@dataclass(frozen=True, slots=True)
class Planned:
    """A collective as it will run: one logical collective, or several merged into one.

    waits_for: names of collectives that must be done before it starts, besides its operands'.
    """

    comms: tuple[Comm, ...]
    mode: Mode
    algorithm: str = ""
    waits_for: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The first collective's name, and how many were merged into it."""
        merged = f" (+{len(self.comms) - 1})" if len(self.comms) > 1 else ""
        return self.comms[0].name + merged

    @property
    def reads(self) -> tuple[str, ...]:
        """Buffers that it reads."""
        return tuple(key for comm in self.comms for key in comm.reads)

    @property
    def writes(self) -> tuple[str, ...]:
        """Buffers that it writes."""
        return tuple(key for comm in self.comms for key in comm.writes)


@dataclass(frozen=True, slots=True)
class Ring:
    """A matmul with the collective that is woven into it, chunk by chunk."""

    calc: Calc
    comm: Comm

    @property
    def name(self) -> str:
        """The matmul's name."""
        return self.calc.name

    @property
    def gathers(self) -> bool:
        """Whether the ring brings an operand, rather than takes the result away."""
        return self.comm.kind is CollectiveKind.ALL_GATHER

    @property
    def reads(self) -> tuple[str, ...]:
        """Buffers that it reads: shards of what it gathers."""
        if not self.gathers:
            return self.calc.reads
        others = (key for key in self.calc.reads if key not in self.comm.writes)
        return (*self.comm.reads, *others)

    @property
    def writes(self) -> tuple[str, ...]:
        """Buffers that it writes: shards of what it scatters."""
        if self.gathers:
            return self.calc.writes
        kept = (key for key in self.calc.writes if key not in self.comm.reads)
        return (*kept, *self.comm.writes)


Entry: TypeAlias = Calc | Planned | Ring | Nest


def regather(nodes: Sequence[Node], limit: int, buffers: dict[str, Buffer]) -> list[Node]:
    """Gather a copy again where more than `limit` matmuls lie between two of its uses.

    The new copies are added to `buffers`.
    """
    gathers = {
        node.writes[0]: node
        for node in nodes
        if isinstance(node, Comm) and node.kind is CollectiveKind.ALL_GATHER
    }
    last: dict[str, int] = {}
    renamed: dict[str, str] = {}
    result: list[Node] = []
    matmuls = 0
    for node in nodes:
        if isinstance(node, Calc):
            matmuls += isinstance(node.op, Einsum)
            for key in node.reads:
                if key in gathers and matmuls - last.setdefault(key, matmuls) > limit:
                    renamed[key] = f"{renamed.get(key, key)} again"
                    buffers[renamed[key]] = buffers[key]
                    result.append(_again(gathers[key], node, renamed[key]))
                last[key] = matmuls
            node = replace(node, reads=tuple(renamed.get(key, key) for key in node.reads))
        result.append(node)
    return result


def _again(gather: Comm, reader: Calc, key: str) -> Comm:
    return replace(gather, name=f"{gather.kind}/{key}", phase=reader.phase, writes=(key,))


def merge_small_gradients(entries: Sequence[Entry], small: frozenset[str]) -> list[Entry]:
    """One all-reduce an axis at the end of the body for the gradients that `small` names.

    Those that read another's result come in a later one. What else reads their results (a gather
    that nobody asked for, a sum of two shares) comes last, with all that follows from it.
    """
    merged: dict[tuple[int, tuple[str, ...]], list[Comm]] = {}
    kept: list[Entry] = []
    followers: list[Entry] = []
    depth: dict[str, int] = {}
    late: set[str] = set()
    for entry in entries:
        after = max((depth[key] for key in entry.reads if key in depth), default=-1)
        is_late = not late.isdisjoint(entry.reads)
        if isinstance(entry, Planned) and entry.comms[0].name in small and not is_late:
            whole = replace(entry.comms[0], kind=CollectiveKind.ALL_REDUCE)
            merged.setdefault((after + 1, whole.axes), []).append(whole)
            depth |= dict.fromkeys(entry.writes, after + 1)
        elif is_late or after >= 0:
            followers.append(entry)
            late.update(entry.writes)
        else:
            kept.append(entry)
    in_order = sorted(merged.items(), key=lambda item: item[0][0])
    return [*kept, *(Planned(tuple(comms), Mode.SYNC) for _, comms in in_order), *followers]


def merge_all_reduces(entries: Sequence[Entry], mergeable: frozenset[str]) -> list[Entry]:
    """Merge each `mergeable` all-reduce into the next over its axes, if nothing reads it before."""
    result = list(entries)
    place = 0
    while place < len(result):
        entry = result[place]
        if isinstance(entry, Planned) and entry.comms[0].name in mergeable:
            partner = _partner(result, place, mergeable)
            if partner:
                other = result[partner]
                assert isinstance(other, Planned)
                result[partner] = replace(other, comms=(*entry.comms, *other.comms))
                del result[place]
                continue
        place += 1
    return result


def _partner(entries: Sequence[Entry], place: int, mergeable: frozenset[str]) -> int | None:
    """The next mergeable all-reduce over the same axes, if nothing between reads this one."""
    first = entries[place]
    assert isinstance(first, Planned)
    for index in range(place + 1, len(entries)):
        entry = entries[index]
        if set(entry.reads) & set(first.writes):
            return None
        if isinstance(entry, Planned) and entry.comms[-1].name in mergeable:
            return index if entry.comms[0].axes == first.comms[0].axes else None
    return None


def prefetch(entries: Sequence[Entry], first_sync: bool, kernels_carry: bool) -> list[Entry]:
    """Start each asynchronous weight gather beside the matmul before its own, one at a time.

    A gather starts when the one before it is done, which is when the matmul that needed that one
    starts; no later than where it stands, and not before its operand is there. The first of the
    body has none before it, and is synchronous where `first_sync`. Where kernels carry nothing, an
    attention kernel waits for the gather that is under way.
    """
    starts: dict[int, list[Entry]] = {}
    moved: set[int] = set()
    previous: Planned | None = None
    beside = 0
    for place, gather in enumerate(entries):
        if not _is_prefetched(gather):
            continue
        if previous is None and first_sync:
            gather = replace(gather, mode=Mode.SYNC)
            start = place
        else:
            start = max(min(beside, place), _after_operand(entries, place))
        if previous is not None:
            gather = replace(gather, waits_for=(previous.name,))
        starts.setdefault(start, []).append(gather)
        moved.add(place)
        previous, beside = gather, _first_user(entries, place)
    result: list[Entry] = []
    for place, entry in enumerate(entries):
        result.extend(starts.get(place, ()))
        if place not in moved:
            result.append(entry)
    return result if kernels_carry else _kernels_wait(result)


def _is_prefetched(entry: Entry) -> TypeGuard[Planned]:
    return (
        isinstance(entry, Planned)
        and entry.mode is Mode.ASYNC
        and entry.comms[0].purpose is Purpose.WEIGHT
    )


def _after_operand(entries: Sequence[Entry], place: int) -> int:
    """The first place at which the operand of the entry at `place` is there."""
    reads = set(entries[place].reads)
    return max((i + 1 for i in range(place) if reads & set(entries[i].writes)), default=0)


def _first_user(entries: Sequence[Entry], place: int) -> int:
    writes = set(entries[place].writes)
    return next(
        (i for i in range(place + 1, len(entries)) if writes & set(entries[i].reads)), place
    )


def _kernels_wait(entries: Sequence[Entry]) -> list[Entry]:
    """Let attention kernels wait for the gather under way, by reading what it writes."""
    result: list[Entry] = []
    under_way: Planned | None = None
    for entry in entries:
        if _is_prefetched(entry):
            under_way = entry
        elif isinstance(entry, Calc) and isinstance(entry.op, Attention) and under_way:
            entry = replace(entry, reads=(*entry.reads, *under_way.writes))
        result.append(entry)
    return result
