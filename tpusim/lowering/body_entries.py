"""Entries of a body: the nodes of a partitioned graph once their modes are chosen."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeVar

from tpusim.base.phase import Phase
from tpusim.partition import CollectiveNode, ComputeNode, LoopNode, Node
from tpusim.program import CollectiveKind, Mode, TransferKind

UNROLLED_RING = 4
"""The most devices of a ring that is written out, and not a loop over chunks."""


@dataclass(frozen=True, slots=True)
class PlannedCollective:
    """A collective as it will run: one logical collective, or several merged into one.

    after: names of collectives that must be done before it starts, besides those of its operands.
    ahead: it runs before the first of the layers, where they are not scanned.
    carried: the matmuls beside it carry it, each an operation of its own; see `carry_gathers`.
    pipelined: software-pipelined. Nothing in its iteration of the loop depends on it: the producer
        of its operand waits for it one iteration later, and so does whatever reads its result.
    """

    collectives: tuple[CollectiveNode, ...]
    mode: Mode
    algorithm: str = ""
    after: tuple[str, ...] = ()
    ahead: bool = False
    carried: bool = False
    pipelined: bool = False

    @property
    def name(self) -> str:
        """Name of the first collective, and the number of others merged into it."""
        merged = f" (+{len(self.collectives) - 1})" if len(self.collectives) > 1 else ""
        return self.collectives[0].name + merged

    @property
    def reads(self) -> tuple[str, ...]:
        """Buffers that it reads."""
        return tuple(key for collective in self.collectives for key in collective.reads)

    @property
    def writes(self) -> tuple[str, ...]:
        """Buffers that it writes."""
        return tuple(key for collective in self.collectives for key in collective.writes)

    @property
    def phase(self) -> Phase:
        """The part of the step."""
        return self.collectives[0].phase


@dataclass(frozen=True, slots=True)
class CollectiveMatmul:
    """A matmul and a collective as one loop over chunks.

    mode: of its permutes: a ring beside the matmuls, or synchronous.
    waits: it runs once the layers are done, where they are not scanned.
    ahead: its result is allocated before the first of these layers.
    """

    compute: ComputeNode
    collective: CollectiveNode
    mode: Mode = Mode.RING
    waits: bool = False
    ahead: bool = False

    @property
    def name(self) -> str:
        """Name of the matmul."""
        return self.compute.name

    @property
    def phase(self) -> Phase:
        """The part of the step."""
        return self.compute.phase

    @property
    def gathers(self) -> bool:
        """True if the collective gathers an operand, false if it scatters the result."""
        return self.collective.kind is CollectiveKind.ALL_GATHER

    @property
    def reads(self) -> tuple[str, ...]:
        """Buffers that it reads: shards of the gathered operand."""
        if not self.gathers:
            return self.compute.reads
        others = (key for key in self.compute.reads if key not in self.collective.writes)
        return (*self.collective.reads, *others)

    @property
    def writes(self) -> tuple[str, ...]:
        """Buffers that it writes: shards of the scattered result."""
        if self.gathers:
            return self.compute.writes
        kept = (key for key in self.compute.writes if key not in self.collective.reads)
        return (*kept, *self.collective.writes)


@dataclass(frozen=True, slots=True)
class RingAttention:
    """An attention kernel beside which keys and values go round a ring, block by block.

    gathers: of K and V, whose shards go round instead.
    scatters: of their gradients, whose sums go round with them instead.
    mode: of its permutes: a ring beside the kernel, or synchronous.
    """

    compute: ComputeNode
    gathers: tuple[CollectiveNode, ...]
    scatters: tuple[CollectiveNode, ...] = ()
    mode: Mode = Mode.RING

    @property
    def name(self) -> str:
        """Name of the kernel."""
        return self.compute.name

    @property
    def phase(self) -> Phase:
        """The part of the step."""
        return self.compute.phase

    @property
    def reads(self) -> tuple[str, ...]:
        """Buffers that it reads: shards of keys and values."""
        shards = {gather.writes[0]: gather.reads[0] for gather in self.gathers}
        return tuple(shards.get(key, key) for key in self.compute.reads)

    @property
    def writes(self) -> tuple[str, ...]:
        """Buffers that it writes: shards of the gradients of keys and values."""
        shards = {scatter.reads[0]: scatter.writes[0] for scatter in self.scatters}
        return tuple(shards.get(key, key) for key in self.compute.writes)


@dataclass(frozen=True, slots=True)
class HostCopy:
    """A copy of a saved tensor to the host, or back for the next iteration of the loop."""

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
        """The buffer that it copies to the host."""
        return (self.key,) if self.kind is TransferKind.TO_HOST else ()

    @property
    def writes(self) -> tuple[str, ...]:
        """The buffer that it copies from the host."""
        return (self.key,) if self.kind is TransferKind.FROM_HOST else ()


Entry: TypeAlias = (
    ComputeNode | PlannedCollective | CollectiveMatmul | RingAttention | LoopNode | HostCopy
)

Step = TypeVar("Step", Node, Entry)


def on_core(entry: Entry) -> bool:
    """Return True for one operation that occupies the core: its times are in program order."""
    return isinstance(entry, ComputeNode) or (
        isinstance(entry, PlannedCollective) and entry.mode is Mode.SYNC
    )


class LayerParts(NamedTuple):
    """The entries of a layer that is not scanned: before all layers, in its turn, and after all."""

    before: Sequence[Entry]
    in_turn: Sequence[Entry]
    after: Sequence[Entry]


def layer_parts(entries: Sequence[Entry]) -> LayerParts:
    """Return the entries of a layer by when they run."""
    rings = {i for i, e in enumerate(entries) if isinstance(e, CollectiveMatmul) and e.waits}
    kept, after = with_readers(entries, rings)
    first = [entry for entry in kept if isinstance(entry, PlannedCollective) and entry.ahead]
    return LayerParts(first, [entry for entry in kept if entry not in first], after)


def with_readers(steps: Sequence[Step], chosen: Collection[int]) -> tuple[list[Step], list[Step]]:
    """Return the steps that stay, and those at the `chosen` places with all their readers."""
    kept: list[Step] = []
    moved: list[Step] = []
    made: set[str] = set()
    for place, step in enumerate(steps):
        if place in chosen or not made.isdisjoint(step.reads):
            moved.append(step)
            made.update(step.writes)
        else:
            kept.append(step)
    return kept, moved


def pipelined_results(entries: Sequence[Entry]) -> dict[str, str]:
    """Return the buffers that are ready one iteration later, each with the name of its writer."""
    operands = pipelined_operands(entries)
    return {k: e.name for e in _pipelined(entries) for k in e.writes if k not in operands}


def pipelined_operands(entries: Sequence[Entry]) -> dict[str, str]:
    """Return the operands of software-pipelined collectives, each with its collective's name."""
    return {key: entry.name for entry in _pipelined(entries) for key in entry.reads}


def _pipelined(entries: Sequence[Entry]) -> list[PlannedCollective]:
    return [e for e in entries if isinstance(e, PlannedCollective) and e.pipelined]


def carriers(entries: Sequence[Entry]) -> frozenset[str]:
    """Return the names of the entries beside which a carried gather is under way."""
    found: set[str] = set()
    awaited: set[str] = set()
    for entry in entries:
        awaited.difference_update(entry.reads)
        if isinstance(entry, PlannedCollective) and entry.carried:
            awaited = set(entry.writes)
        elif awaited:
            found.add(entry.name)
    return frozenset(found)


def left_in_flight(entries: Sequence[Entry]) -> tuple[str, ...]:
    """Return the asynchronous collectives whose results no other entry of their body reads.

    The loop of a compiled program waits for them at its end, but for those that are pipelined over
    its iterations.
    """
    read = {key for entry in entries for key in entry.reads}
    return tuple(
        entry.name
        for entry in entries
        if isinstance(entry, PlannedCollective)
        and entry.mode is Mode.ASYNC
        and not entry.pipelined
        and read.isdisjoint(entry.writes)
    )
