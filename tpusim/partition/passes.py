"""Rewrites of a body before it is lowered: gathering again, merging reductions.

Each pass takes the entries of a body in order and returns them in their new order.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tpusim.graph import Einsum
from tpusim.partition.layout import is_across
from tpusim.partition.template import Buffer, Calc, Comm, Nest, Node
from tpusim.phase import Phase
from tpusim.program import CollectiveKind, Mode, TransferKind


@dataclass(frozen=True, slots=True)
class Planned:
    """A collective as it will run: one logical collective, or several merged into one.

    waits_for: names of collectives that must be done before it starts, besides its operands'.
    behind: nothing in its trip of the loop waits for it. What makes its operand waits for it a trip
        later, and so does what reads its result, which is then the result of the trip before.
    """

    comms: tuple[Comm, ...]
    mode: Mode
    algorithm: str = ""
    waits_for: tuple[str, ...] = ()
    behind: bool = False

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


@dataclass(frozen=True, slots=True)
class KernelRing:
    """An attention kernel to which keys and values travel, block by block.

    gathers: of K and V, in place of which their shards go round. scatters: of their gradients, in
    place of which the sums go round with them.
    """

    calc: Calc
    gathers: tuple[Comm, ...]
    scatters: tuple[Comm, ...] = ()

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.calc.name

    @property
    def phase(self) -> Phase:
        """The part of the step."""
        return self.calc.phase

    @property
    def reads(self) -> tuple[str, ...]:
        """Buffers that it reads: shards of keys and values."""
        shards = {comm.writes[0]: comm.reads[0] for comm in self.gathers}
        return tuple(shards.get(key, key) for key in self.calc.reads)

    @property
    def writes(self) -> tuple[str, ...]:
        """Buffers that it writes: shards of the gradients of keys and values."""
        shards = {comm.reads[0]: comm.writes[0] for comm in self.scatters}
        return tuple(shards.get(key, key) for key in self.calc.writes)


@dataclass(frozen=True, slots=True)
class HostCopy:
    """A saved tensor on its way to the host, or on its way back for the next trip of the loop."""

    kind: TransferKind
    key: str
    tensor: str
    phase: Phase

    @property
    def name(self) -> str:
        """The direction and the tensor."""
        return f"{self.kind}/{self.tensor}"

    @property
    def reads(self) -> tuple[str, ...]:
        """The buffer that leaves."""
        return (self.key,) if self.kind is TransferKind.TO_HOST else ()

    @property
    def writes(self) -> tuple[str, ...]:
        """The buffer that comes back."""
        return (self.key,) if self.kind is TransferKind.FROM_HOST else ()


Entry: TypeAlias = Calc | Planned | Ring | KernelRing | Nest | HostCopy


def on_core(entry: Entry) -> bool:
    """Whether it is one operation that the core waits for: its times are in program order."""
    return isinstance(entry, Calc) or (isinstance(entry, Planned) and entry.mode is Mode.SYNC)


def late_results(entries: Sequence[Entry]) -> dict[str, str]:
    """The buffers that are ready a trip later, each with the collective that writes it."""
    taken = behind_operands(entries)
    return {key: e.name for e in _behind(entries) for key in e.writes if key not in taken}


def behind_operands(entries: Sequence[Entry]) -> dict[str, str]:
    """The operands of the collectives that are a trip behind, each with its collective."""
    return {key: entry.name for entry in _behind(entries) for key in entry.reads}


def _behind(entries: Sequence[Entry]) -> list[Planned]:
    return [entry for entry in entries if isinstance(entry, Planned) and entry.behind]


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


def merge_gradients(entries: Sequence[Entry], chosen: frozenset[str]) -> list[Entry]:
    """One all-reduce an axis at the end of the body for the gradients that `chosen` names.

    Those that read another's result come in a later one, and so does what takes them across slices.
    What else reads their results (a gather that nobody asked for, a sum of two shares) comes last,
    with all that follows from it.
    """
    merged: dict[tuple[int, CollectiveKind, tuple[str, ...]], list[Planned]] = {}
    kept: list[Entry] = []
    followers: list[Entry] = []
    depth: dict[str, int] = {}
    late: set[str] = set()
    for entry in entries:
        after = max((depth[key] for key in entry.reads if key in depth), default=-1)
        is_late = not late.isdisjoint(entry.reads)
        if isinstance(entry, Planned) and entry.comms[0].name in chosen and not is_late:
            entry = _whole(entry)
            key = (after + 1, entry.comms[0].kind, entry.comms[0].axes)
            merged.setdefault(key, []).append(entry)
            depth |= dict.fromkeys(entry.writes, after + 1)
        elif is_late or after >= 0:
            followers.append(entry)
            late.update(entry.writes)
        else:
            kept.append(entry)
    in_order = sorted(merged.items(), key=lambda item: item[0][0])
    return [*kept, *(_as_one(alike) for _, alike in in_order), *followers]


def _whole(entry: Planned) -> Planned:
    """A merged gradient's reduction within the slice: a synchronous all-reduce."""
    first = entry.comms[0]
    if is_across(first.axes) or first.kind is CollectiveKind.ALL_GATHER:
        return entry
    return Planned((replace(first, kind=CollectiveKind.ALL_REDUCE),), Mode.SYNC)


def _as_one(alike: Sequence[Planned]) -> Planned:
    return replace(alike[0], comms=tuple(comm for entry in alike for comm in entry.comms))


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
