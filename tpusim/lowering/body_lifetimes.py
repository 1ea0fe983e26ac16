"""Buffer lifetimes in one body: allocation and free points, from the order of its entries."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from tpusim.graph import Einsum, Pointwise, Scatter
from tpusim.lowering.body_entries import (
    Entry,
    HostCopy,
    PlannedCollective,
    carriers,
    on_core,
    pipelined_results,
)
from tpusim.lowering.fused_results import fused_results
from tpusim.lowering.key_gradients import read_beside_sums, whole_sums
from tpusim.lowering.offload import leaving_copy
from tpusim.lowering.op_work import Buffers
from tpusim.partition import STATE, CollectiveNode, ComputeNode, LoopNode, Sizes
from tpusim.program import Alloc, CollectiveKind, Mode, Number


@dataclass(slots=True)
class BufferEvents:
    """The buffers that an entry allocates when it starts and frees when it ends."""

    allocs: list[Alloc] = field(default_factory=list)
    frees: list[str] = field(default_factory=list)


class _ProgramBuffers(Protocol):
    """What a body asks of `BufferLifetimes`, which has the buffers of all bodies."""

    sizes: Sizes
    buffers: Buffers
    finished: frozenset[str]
    sliced_late: frozenset[str]
    taken_over: dict[str, str]
    ahead: dict[str, Alloc]

    def size(self, key: str) -> Number: ...

    def alloc(self, key: str) -> Alloc: ...

    def carries(self, loop_node: LoopNode) -> dict[str, str]: ...


class BodyLifetimes:
    """Builder of the lifetimes in one body.

    last: the place of the last reader of each buffer.
    inside: results that their readers compute, and added: terms that matmuls add to an earlier one;
        see `FusedResults`.
    carriers: entries beside which a gather is carried, whose results are written over nothing.
    names: the name under which each buffer of this body was allocated: its own, or that of the
        operand which it was written over.
    saved: allocations that outlive the body, by buffer, until the body makes them.
    """

    def __init__(
        self,
        memory: _ProgramBuffers,
        entries: Sequence[Entry],
        kept: Sequence[str],
        loads: Sequence[str],
        outside: Collection[str],
        given: Mapping[str, str | None],
        saved: Mapping[str, Alloc],
        carried: Mapping[str, str],
    ) -> None:
        """given: each with the name under which it was allocated; None if it is its own."""
        self.carried = carried
        self.memory = memory
        self.entries = entries
        self.saved = dict(saved)
        stays = (key for key, one in saved.items() if one.tensor == key)
        self.kept = frozenset((*kept, *outside, *stays))
        self.outside = outside
        self.lives = [BufferEvents() for _ in entries]
        self.names: dict[str, str] = {}
        late = pipelined_results(entries)
        fused = fused_results(entries, self.kept.union(carried))
        self.inside = fused.in_readers(memory.size, memory.sizes.group)
        self.added = fused.terms
        self.carriers = carriers(entries)
        self.last = {
            key: place
            for place, entry in enumerate(entries)
            for read in entry.reads
            for key in self._held_for(read)
            if key not in late and not (isinstance(entry, HostCopy) and self._enters(key))
        }
        self.last = {**dict.fromkeys(carried.values(), 0), **self.last}
        self.last |= _sliced_late(entries, memory.sliced_late, memory.buffers)
        for key, place in read_beside_sums(entries, memory.sizes.kernel.fused).items():
            self.last[key] = max(self.last[key], place)
        self.last = {**{k: len(entries) - 1 for k, name in given.items() if name}, **self.last}
        fetched = {key for e in entries if isinstance(e, HostCopy) for key in e.writes}
        self.loads = set(loads) - fetched
        self.given = frozenset(given).intersection(self.last) - self.kept
        for key in sorted(self.given):
            self.names[key] = given[key] or key
            self._give_back(self.names[key], self.last[key])

    def load(self, place: int, entry: Entry) -> None:
        """Copy the tensors that the entry is the first to read out of their stacks."""
        for key in sorted(self.loads.intersection(entry.reads)):
            self.loads.remove(key)
            self.names[key] = key
            self._take(key, place, self.last[key])

    def write(self, place: int, entry: Entry) -> None:
        """Allocate the entry's results, or write them over operands without a later reader."""
        over = {} if entry.name in self.carriers else self._overwritten(place, entry)
        whole = whole_sums(entry)
        if isinstance(entry, LoopNode) and not entry.scan.unrolled:
            self._enter(place, entry)
        for key in entry.writes:
            if key in self.names and isinstance(entry, LoopNode):
                continue
            in_place = self.memory.buffers[key].category == STATE
            taken = in_place or key in self.outside or key in self.memory.ahead
            if taken or key in self.inside:
                continue
            if key in self.added:
                self.names[key] = self.names[self.added[key]]
                continue
            end = None if key in self.kept else self.last.get(key, place)
            if key in self.carried:
                self._leave_to_next(place, key, over.get(key, ""))
                continue
            self.names[key] = over.get(key, key)
            if key in over:
                self.lives[place].frees.remove(over[key])
                self._give_back(over[key], end)
            else:
                self._take(key, place, end, whole.get(key))

    def _enter(self, place: int, loop_node: LoopNode) -> None:
        """Give a loop the buffers of what it carries, in which its last iteration leaves them."""
        pairs = zip(loop_node.reads, loop_node.writes, loop_node.carried, strict=False)
        carried = self.memory.carries(loop_node)
        for before, after, (entered, left) in pairs:
            if left not in carried:
                continue
            own = before not in self.kept and self.last.get(before) == place
            if own and self.names.get(before) == before and before not in self.given:
                self._rename(before, entered)
                self.lives[place].frees.remove(before)
            else:
                self.lives[place].allocs.append(replace(self.memory.alloc(before), tensor=entered))
            if after not in self.kept:
                self.names[after] = entered
                self._give_back(entered, self.last.get(after, place))

    def _leave_to_next(self, place: int, key: str, over: str) -> None:
        """Leave a result to the next iteration, which finds it in the buffer that it enters in.

        While this iteration still reads that buffer, the result has one of its own. It is not
        written over the buffer of another carry, which the next iteration enters in.
        """
        entered = self.carried[key]
        self.names[key] = entered
        if over != entered and self._enters(over):
            over = ""
        if over:
            self.lives[place].frees.remove(over)
        else:
            self.lives[place].allocs.append(self.memory.alloc(key))
        if over == entered:
            return
        begin, one = self._allocated(over or key)
        end = next(i for i, life in enumerate(self.lives) if entered in life.frees)
        if not (on_core(self.entries[begin]) and on_core(self.entries[end])):
            self.lives[begin].allocs.remove(one)
            self.lives[end].frees.remove(entered)
        elif begin > end:
            self._rename(one.tensor, entered)
        else:
            self.lives[end].frees.remove(entered)
            self.lives[end].frees.append(one.tensor)

    def _allocated(self, name: str) -> tuple[int, Alloc]:
        return next(
            (place, one)
            for place, life in enumerate(self.lives)
            for one in life.allocs
            if one.tensor == name
        )

    def _enters(self, key: str) -> bool:
        """Return True for what an iteration begins with, and the next one writes over."""
        return key in self.carried.values()

    def _rename(self, old: str, new: str) -> None:
        for life in self.lives:
            life.allocs[:] = [
                replace(one, tensor=new) if one.tensor == old else one for one in life.allocs
            ]

    def _held_for(self, key: str) -> Sequence[str]:
        """Return the buffers that a reader of `key` needs: what it computes it of, if it does."""
        operands = self.inside.get(key)
        return (key,) if operands is None else [k for o in operands for k in self._held_for(o)]

    def leave(self, place: int, copy: HostCopy) -> None:
        """Return the copy of an iteration's input, which the next iteration writes over."""
        if all(key in self.names and not self._enters(key) for key in copy.reads):
            return
        before = (i for i in range(place) if on_core(self.entries[i]))
        one = replace(self.memory.alloc(copy.key), tensor=leaving_copy(copy.key))
        self.lives[max(before, default=place)].allocs.append(one)
        self.lives[place].frees.append(one.tensor)

    def _take(self, key: str, place: int, end: int | None, whole: str | None = None) -> None:
        """whole: the buffer as large as what is taken, where its readers take a part of it."""
        left = self.saved.pop(key, None)
        if left is None or end is not None:
            taken = self.memory.alloc(whole if whole and end is not None else key)
            self.lives[place].allocs.append(
                taken if taken.tensor == key else replace(taken, tensor=key)
            )
        if left is not None:
            self.lives[place].allocs.append(left)
        self._give_back(key, end)

    def _give_back(self, name: str, end: int | None) -> None:
        if end is not None:
            self.lives[end].frees.append(name)

    def _overwritten(self, place: int, entry: Entry) -> dict[str, str]:
        """Return the results that replace operands: of the same size, and dead afterwards.

        What outlives the body keeps its own name, by which it is freed later, unless it is written
        over a buffer that was there before.
        """
        dying = [
            key
            for key in dict.fromkeys(_element_by_element(entry))
            if self.last.get(key) == place
            and key in self.names
            and key not in self.added
            and key not in self.kept
        ]
        pairs = {}
        size = self.memory.size
        for key in entry.writes:
            over = self.given.intersection(dying) if key in self.kept else dying
            match = next((k for k in over if size(k) == size(key)), None)
            if match is not None:
                dying.remove(match)
                pairs[key] = self.names[match]
                if key in self.kept:
                    self.memory.taken_over[key] = self.names[match]
        return pairs


def _sliced_late(
    entries: Sequence[Entry], finished: frozenset[str], buffers: Buffers
) -> dict[str, int]:
    """Return whole gradients that are held to the end of a step's body, each with its last entry.

    The gradient of a matmul or a lookup that is all-reduced is sliced where the optimizer reads it,
    so that it is held whole until then: the head's, in 12 of 12 compiled plans that all-reduce it
    over all axes that shard the batch (v2 8x8 to v6e 16x16, fsdp of 64 to 256; libtpu 0.0.42.1),
    and in MaxText's 32B on v5e 16x16; both in two of these with `context`, head and table. One that
    is reduced further over `data` is sliced at once (2 of 2 plans), and so is one that is added to
    those of other microbatches (2 of 2, experts on v5p 4x8x8); the sum over tiles of the loss is
    reduced in each (405B on v5p 8x8x8).
    """
    if not any(isinstance(entry, LoopNode) for entry in entries):
        return {}
    added_up: set[str] = set()
    for entry in entries:
        if isinstance(entry, ComputeNode) and (
            isinstance(entry.op, Einsum | Scatter)
            or (entry.reads and added_up.issuperset(entry.reads))
        ):
            added_up.update(entry.writes)
    return {
        collective.reads[0]: len(entries) - 1
        for entry in entries
        if isinstance(entry, PlannedCollective) and entry.mode is Mode.SYNC
        for collective in entry.collectives
        if collective.reads[0] in added_up
        and finished.issuperset(collective.writes)
        and (
            entry.algorithm == CollectiveKind.ALL_REDUCE
            or (collective.kind is CollectiveKind.ALL_REDUCE and _shards(collective, buffers))
        )
    }


def _shards(collective: CollectiveNode, buffers: Buffers) -> bool:
    """Return True if its result is more sharded than its operand."""
    given, made = (buffers[keys[0]].local for keys in (collective.reads, collective.writes))
    return given.split() != made.split()


def _element_by_element(entry: Entry) -> Sequence[str]:
    """Return the operands that a result can be written over.

    A matmul reads its first two throughout, its epilogue the others once. A softmax or a norm reads
    its operands more than once. Layers that are not scanned have no copy of what they begin with in
    their carry. A synchronous all-reduce of one tensor runs in place (of those that
    sum results of matmuls, 104 of 165 are noted as in place by the compiler, libtpu 0.0.42.1).
    """
    if isinstance(entry, PlannedCollective):
        alone = len(entry.collectives) == 1 and entry.mode is Mode.SYNC
        summed = entry.collectives[0].kind is CollectiveKind.ALL_REDUCE
        return entry.reads if alone and summed else ()
    if isinstance(entry, LoopNode):
        return entry.reads[: len(entry.carried)] if entry.scan.unrolled else ()
    if not isinstance(entry, ComputeNode):
        return ()
    if isinstance(entry.op, Pointwise):
        return () if entry.op.over else entry.reads
    return entry.reads[2:] if entry.epilogue else ()
