"""From the tasks of one lane to flat integer instructions.

The tree of loops becomes one list of instructions, names become indices, and seconds and bytes
become integers. Each dependency becomes one comparison. Let L be the innermost loop that holds both
the consumer and `op` (the program itself counts as a loop of one iteration), and let `op` have
n instances per iteration of L (other than 1 if it is inside further loops). In iteration t of L,
the consumer needs all instances of the iterations up to t - distance. When the core comes to the
consumer, it has issued those of iteration t too if `op` precedes the consumer, and those up to
iteration t - 1 otherwise. So the last n x distance, or n x (distance - 1), of the issued instances
need not be complete, and all others must. An iteration before the first requires nothing.

Instances of one task complete in the order of their issue (they are alike, and start in order), so
completions are counted, not listed. Dependencies on tasks of the core are dropped: the core is in
order, so they are complete when the consumer is issued.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from tpusim.costs import CORE, CostedProgram, Task, TaskLoop, TopTask, TransferPart
from tpusim.engine.clock import nanobytes, nanobytes_per_ps, picoseconds, whole_bytes
from tpusim.engine.instructions import (
    ON_CORE,
    CompletionNeed,
    LaneCode,
    LaneInstruction,
    LoopEnd,
    LoopStart,
    MemoryDelta,
    TaskNumbers,
    TaskStep,
)
from tpusim.program import Alloc, Call, Dep


class EnclosingLane(NamedTuple):
    """The rest of a lane, as far as a part of it that runs alone may name it.

    taken: tensors that the part may free.
    done: tasks that are complete when the part begins.
    """

    taken: tuple[Alloc, ...]
    done: frozenset[str]


def compile_lane(
    program: CostedProgram, first_link: int = 0, enclosing: EnclosingLane | None = None
) -> LaneCode:
    """Return the code of `program`, with its links numbered from `first_link`.

    enclosing: the lane that the program is a part of, if any.

    Raise ValueError for a program that contradicts itself: a name used twice, an unknown
    dependency or link, a dependency on a later task of the same iteration, a tensor of two sizes or
    one that is freed and never taken, a number below zero.
    """
    links = link_numbers(program.links, first_link)
    layout = _CodeLayout(links)
    if enclosing is not None:
        layout.add_enclosing(enclosing)
    layout.add_body(program.body, (), 1)
    for index in layout.indices.values():
        _resolve(index, layout)
    for end, tensors in layout.ends:
        end.frees = layout.freed(f"loop {end.name!r}", tensors)
    return LaneCode(
        name=program.name,
        instructions=tuple(layout.instructions),
        steps=tuple(index.step for index in layout.indices.values()),
        loops=len(layout.loops),
        trips=layout.trips,
        streams=tuple(layout.streams),
        links=links.rates,
        first_link=first_link,
        tensors=tuple(alloc for _, _, alloc in layout.tensors.values()),
        resident=program.resident,
        host=tuple(layout.step(task) for task in program.host),
        torus=program.torus,
    )


class _InstructionIndex(NamedTuple):
    step: TaskStep
    loops: tuple[int, ...]


class _LinkUses(NamedTuple):
    """Number and weight of each link that is used, and the rate that a task alone reaches."""

    links: tuple[tuple[int, int], ...]
    rate: int


class LinkNumbers:
    """The links of one lane, and their numbers in the network.

    rates: name and rate (nB/ps) of each.
    first: the number of the first.
    """

    __slots__ = ("_known", "_numbers", "rates")

    def __init__(self, rates: tuple[tuple[str, int], ...], first: int) -> None:
        self.rates = rates
        self._numbers = {name: (first + at, rate) for at, (name, rate) in enumerate(rates)}
        self._known: dict[tuple[tuple[str, int], ...], _LinkUses] = {}
        if len(self._numbers) < len(rates):
            raise ValueError("a link is named twice in one program")

    def uses(self, name: str, uses: tuple[tuple[str, int], ...]) -> _LinkUses:
        """Return the links that a task uses; most tasks use the same few sets of links."""
        found = self._known.get(uses)
        if found is None:
            try:
                found = self._known[uses] = self._new_uses(uses)
            except ValueError as error:
                raise ValueError(f"task {name!r} uses {error}") from None
        return found

    def _new_uses(self, uses: tuple[tuple[str, int], ...]) -> _LinkUses:
        weights: dict[int, int] = {}
        slowest = 0
        for name, weight in uses:
            if name not in self._numbers:
                raise ValueError(f"the link {name!r}, which has no rate")
            if weight < 0 or weight != int(weight):
                raise ValueError(f"{name!r} with the weight {weight!r}")
            if weight:
                number, rate = self._numbers[name]
                weights[number] = weights.get(number, 0) + int(weight)
                alone = max(1, rate // weights[number])
                slowest = min(slowest or alone, alone)
        return _LinkUses(tuple(weights.items()), slowest)


def link_numbers(links: Sequence[tuple[str, float]], first: int = 0) -> LinkNumbers:
    """Return the numbers of links, from `first`; links: name and rate (B/s) of each."""
    return LinkNumbers(tuple((name, nanobytes_per_ps(float(rate))) for name, rate in links), first)


def task_numbers(name: str, task: Task | TransferPart, links: LinkNumbers) -> TaskNumbers:
    """Return the numbers of a task, which has this name. Raise ValueError for a link of no rate."""
    delay, work = picoseconds(task.delay_s), picoseconds(task.work_s)
    uses, rate = links.uses(name, task.uses)
    volume = nanobytes(task.bytes) if uses else 0
    cap = min(rate, -(-volume // work)) if volume and work else rate
    alone = delay + max(work, -(-volume // cap) if volume else 0)
    return TaskNumbers(delay, work, volume, cap, uses, alone)


@dataclass(slots=True)
class _CodeLayout:
    """The instructions in order; dependencies and frees come after, as they may point forwards."""

    links: LinkNumbers
    instructions: list[LaneInstruction] = field(default_factory=list)
    indices: dict[str, _InstructionIndex] = field(default_factory=dict)
    loops: dict[str, LoopEnd] = field(default_factory=dict)
    ends: list[tuple[LoopEnd, tuple[str, ...]]] = field(default_factory=list)
    streams: dict[str, int] = field(default_factory=dict)
    tensors: dict[str, tuple[int, int, Alloc]] = field(default_factory=dict)
    trips: int = 0
    done: frozenset[str] = frozenset()

    def add_enclosing(self, enclosing: EnclosingLane) -> None:
        self.done = enclosing.done
        self._take(enclosing.taken)

    def add_body(self, body: Sequence[TopTask], loops: tuple[int, ...], runs: int) -> None:
        for op in body:
            if op.name in self.indices or op.name in self.loops:
                raise ValueError(f"the name {op.name!r} is used twice in one program")
            if isinstance(op, Call):
                raise ValueError(f"call {op.name!r} stands where there can be tasks and loops only")
            if isinstance(op, TaskLoop):
                self._add_loop(op, loops, runs)
            else:
                step = self.step(op)
                self.indices[op.name] = _InstructionIndex(step, loops)
                self.instructions.append(step)

    def _add_loop(self, loop: TaskLoop, loops: tuple[int, ...], runs: int) -> None:
        if loop.trips < 0:
            raise ValueError(f"loop {loop.name!r} cannot run {loop.trips} times")
        takes = self._take(loop.allocs) if loop.allocs else None
        start = LoopStart(len(self.loops), 0, takes)
        self.instructions.append(start)
        end = LoopEnd(start.loop, loop.name, loop.trips, len(self.instructions), 0)
        self.loops[loop.name] = end
        if loop.frees:
            self.ends.append((end, loop.frees))
        self.trips += runs * loop.trips
        self.add_body(loop.body, (*loops, start.loop), runs * loop.trips)
        start.end = len(self.instructions)
        self.instructions.append(end)

    def step(self, task: Task) -> TaskStep:
        """Return the task in integer units, with the next free index."""
        stream = ON_CORE
        if task.stream != CORE:
            stream = self.streams.setdefault(task.stream, len(self.streams))
        return TaskStep(
            task,
            len(self.indices),
            stream,
            *task_numbers(task.name, task, self.links),
            takes=self._take(task.allocs) if task.allocs else None,
        )

    def _take(self, allocs: tuple[Alloc, ...]) -> MemoryDelta:
        for alloc in allocs:
            size = whole_bytes(float(alloc.bytes))
            first = self.tensors.setdefault(alloc.tensor, (len(self.tensors), size, alloc))
            if first[1] != size:
                raise ValueError(f"tensor {alloc.tensor!r} has {first[1]} and {size} bytes")
        return self.change([alloc.tensor for alloc in allocs], 1)

    def freed(self, what: str, tensors: Sequence[str]) -> MemoryDelta:
        """Return the tensors that `what` frees."""
        for tensor in tensors:
            if tensor not in self.tensors:
                raise ValueError(f"{what} frees {tensor!r}, which no task takes")
        return self.change(tensors, -1)

    def change(self, tensors: Sequence[str], sign: int) -> MemoryDelta:
        """Return one instance of each of `tensors` taken (1) or freed (-1)."""
        known = [self.tensors[tensor] for tensor in tensors]
        size = sign * sum([size for _, size, _ in known])
        return MemoryDelta(size, tuple([(index, sign) for index, _, _ in known]))


def _resolve(consumer: _InstructionIndex, layout: _CodeLayout) -> None:
    step = consumer.step
    if step.task.deps:
        deps = (
            dep for dep in step.task.deps if dep.op in layout.indices or dep.op not in layout.done
        )
        needs = (_completion_need(consumer, dep, layout) for dep in deps)
        step.needs = tuple(need for need in needs if need is not None)
    if step.task.frees:
        step.frees = layout.freed(f"task {step.task.name!r}", step.task.frees)


def _completion_need(
    consumer: _InstructionIndex, dep: Dep, layout: _CodeLayout
) -> CompletionNeed | None:
    name = consumer.step.task.name
    if dep.op not in layout.indices:
        raise ValueError(f"task {name!r} depends on {dep.op!r}, which is no task of the program")
    step, loops = layout.indices[dep.op]
    before = step.index < consumer.step.index
    if dep.distance < 0 or not (before or dep.distance):
        raise ValueError(
            f"task {name!r} depends on {dep.op!r} of {dep.distance} iterations before, "
            "which is not issued until later"
        )
    if step.stream == ON_CORE:
        return None
    shared = _shared_loops(loops, consumer.loops)
    if not shared:
        return CompletionNeed(step.index, 0, 0, 0) if dep.distance == 0 else None
    ends = tuple(layout.loops.values())
    common = ends[loops[shared - 1]]
    common.reach = max(common.reach, dep.distance)
    instances = prod(ends[loop].trips for loop in loops[shared:])
    lag = instances * (dep.distance if before else dep.distance - 1)
    return CompletionNeed(step.index, lag, common.loop, dep.distance)


def _shared_loops(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Return the number of outermost loops in common; none after one that differs counts."""
    if one == other:
        return len(one)
    return sum(a == b for a, b in zip(one, other, strict=False))
