"""The heap of a program: its buffers in the order of issue, as the TPU compiler places them.

A buffer lives from the operation that allocates it to the one that frees it; what an asynchronous
operation frees, to the first operation that waits for it. The order of issue is the compiler's
schedule, so the heap depends on no time. The body of a loop is one computation whose buffers are
placed once; where iterations hand buffers to later ones, it is walked until they hold the same, or
as much more as the one before.

Segments of a pipeline are programs of their own: each has its heap above what its stage holds.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple, TypeAlias

from tpusim.program.heap import HeapBuffer, packed_bytes
from tpusim.program.ops import (
    Alloc,
    Call,
    Collective,
    Loop,
    Mode,
    Op,
    Single,
    TopOp,
    Transfer,
    walk_allocs,
    walk_ops,
)
from tpusim.program.program import Program

Packing: TypeAlias = Callable[[Iterable[HeapBuffer]], int]
"""Returns how far up the heap of buffers reaches."""


class _PartHeap(NamedTuple):
    """Bytes of the heap of a part above what is held before it, and those held more after it."""

    top: float
    rise: float


def program_heap(program: Program, pack: Packing = packed_bytes) -> float:
    """Return how far up the heap of a program reaches above its resident bytes.

    pack: how buffers are placed.
    """
    taken = walk_allocs(program.body, program.segments)
    sizes = {alloc.tensor: float(alloc.bytes) for _, allocs in taken for alloc in allocs}
    heaps = {segment.name: _part_heap(segment.body, sizes, pack) for segment in program.segments}
    level = top = 0.0
    for called, part in _parts(program.body):
        heap = heaps[called] if called else _part_heap(part, sizes, pack)
        top = max(top, level + heap.top)
        level += heap.rise
    return top


def reported_heap(program: Program) -> float:
    """Return `temp_size_in_bytes` of `memory_analysis()`, which counts a part of the heap twice.

    Where one loop hands stacks to another, that is what lies above the most that is held through a
    loop: what is there when it starts and still when it has ended. The rule is inferred from 11
    programs for v6e (libtpu 0.0.42.1, one of them MaxText's), of which the last two to be checked
    agree within 0.2 MiB; one whose loop over offloaded tensors has its last iteration apart counts
    less. In 4 of 4 programs without such loops it is the heap alone, and so it is with 0.0.52.
    """
    heap = program_heap(program)
    loops = [op for op in program.body if isinstance(op, Loop)]
    return heap if len(loops) < 2 else heap + max(0.0, heap - _held_through(program))


def _held_through(program: Program) -> float:
    """Return the most bytes that are held through a loop, above the resident ones."""
    taken = [alloc for _, allocs in walk_allocs(program.body) for alloc in allocs]
    walk = _BufferWalk({alloc.tensor: float(alloc.bytes) for alloc in taken})
    most = 0.0
    for op in program.body:
        if isinstance(op, Loop):
            held = walk.level + sum(float(alloc.bytes) for alloc in op.allocs)
            most = max(most, held - sum(walk.sizes[tensor] for tensor in op.frees))
        if not isinstance(op, Call):
            walk.run([op])
    return most


def _parts(body: Sequence[TopOp]) -> Iterator[tuple[str, Sequence[Op]]]:
    """Yield the name of each segment that is called, and the operations between calls."""
    for called, ops in groupby(body, lambda op: isinstance(op, Call)):
        if called:
            yield from ((op.segment, ()) for op in ops if isinstance(op, Call))
        else:
            yield "", [op for op in ops if not isinstance(op, Call)]


def _part_heap(body: Sequence[Op], sizes: Mapping[str, float], pack: Packing) -> _PartHeap:
    walk = _BufferWalk(sizes)
    walk.run(body)
    walk.finish()
    return _PartHeap(pack(walk.buffers) - walk.given, walk.level)


@dataclass(slots=True)
class _BufferWalk:
    """The buffers of a body, in its order.

    sizes: bytes of each tensor.
    alive: start of each instance of a tensor, the oldest first.
    waiting: what the runs of an asynchronous operation free that nothing has awaited yet.
    order: the number of each operation, in the order of issue.
    level: bytes held more than before the body.
    given: bytes that the body frees and that are held before it.
    """

    sizes: Mapping[str, float]
    buffers: list[HeapBuffer] = field(default_factory=list)
    alive: dict[str, list[int]] = field(default_factory=dict)
    waiting: dict[str, list[tuple[str, ...]]] = field(default_factory=dict)
    order: dict[str, int] = field(default_factory=dict)
    now: int = 0
    level: float = 0.0
    given: float = 0.0

    def run(self, body: Iterable[Op]) -> None:
        """Walk operations and loops."""
        for op in body:
            if isinstance(op, Loop):
                self._run_loop(op)
            else:
                self._issue(op)

    def finish(self) -> None:
        """End all buffers; those that nothing frees outlive the body."""
        for name in self.waiting:
            self._complete(name, 0)
        for tensor, starts in self.alive.items():
            self.buffers += [HeapBuffer(at, self.now, self.sizes[tensor]) for at in starts]

    def _run_loop(self, loop: Loop) -> None:
        self.now += 1
        self._take(loop.allocs)
        before, moved, reach = self._held(), Counter[str](), 0
        for turn in range(loop.trips):
            self.run(loop.body)
            after = self._held()
            moved, last = Counter(after), moved
            moved.subtract(before)
            if not any(moved.values()):
                break
            reach = reach or 1 + _reach(loop.body)
            if moved == last and turn > reach:
                self._repeat(moved, loop.trips - 1 - turn)
                break
            before = after
        self._free(loop.frees)

    def _held(self) -> Counter[str]:
        """Return the instances of each tensor, and the runs that nothing has awaited yet."""
        held = {tensor: len(starts) for tensor, starts in self.alive.items()}
        return Counter(held | {f"{name} waits": len(runs) for name, runs in self.waiting.items()})

    def _repeat(self, moved: Mapping[str, int], times: int) -> None:
        """Move the counts of tensors as so many more iterations do, all at once."""
        known = {tensor: times * moved[tensor] for tensor in self.sizes if moved.get(tensor)}
        for tensor, count in known.items():
            self._free([tensor] * -count)
        self.now += 1
        for tensor, count in known.items():
            self._hold(tensor, count)

    def _issue(self, op: Single) -> None:
        number = self.order.setdefault(op.name, len(self.order))
        if self.waiting:
            for dep in op.deps:
                if dep.op in self.waiting:
                    self._complete(dep.op, dep.distance - (self.order[dep.op] > number))
        self.now += 1
        self._take(op.allocs)
        if op.frees and _beside_core(op):
            self.waiting.setdefault(op.name, []).append(op.frees)
        else:
            self._free(op.frees)

    def _take(self, allocs: Iterable[Alloc]) -> None:
        for alloc in allocs:
            self._hold(alloc.tensor, 1)

    def _hold(self, tensor: str, count: int) -> None:
        if count > 0:
            self.level += count * self.sizes[tensor]
            self.alive.setdefault(tensor, []).extend([self.now] * count)

    def _complete(self, name: str, left: int) -> None:
        """Free what all runs of an operation free but the last `left`."""
        runs = self.waiting[name]
        done = len(runs) - left
        for frees in runs[:done] if done > 0 else ():
            self._free(frees)
        del runs[: max(0, done)]

    def _free(self, tensors: Iterable[str]) -> None:
        for tensor in tensors:
            size, starts = self.sizes[tensor], self.alive.get(tensor)
            self.level -= size
            if not starts:
                self.given += size
            start = starts.pop(0) if starts else 0
            self.buffers.append(HeapBuffer(start, self.now, size))


def _reach(body: Sequence[Op]) -> int:
    """Return the iterations that the longest dependency reaches back."""
    return max((dep.distance for op, _ in walk_ops(body) for dep in op.deps), default=0)


def _beside_core(op: Single) -> bool:
    """Return True for an operation during which the core goes on."""
    return isinstance(op, Transfer) or (isinstance(op, Collective) and op.mode is Mode.ASYNC)
