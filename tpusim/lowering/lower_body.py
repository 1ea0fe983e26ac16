"""Bodies of a partitioned graph as operations of one device."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from typing import NamedTuple, TypeAlias

from tpusim.base.phase import Phase
from tpusim.graph import Scan
from tpusim.lowering.body_entries import (
    CollectiveMatmul,
    Entry,
    HostCopy,
    PlannedCollective,
    RingAttention,
    layer_parts,
)
from tpusim.lowering.body_lifetimes import BufferEvents
from tpusim.lowering.buffer_lifetimes import BufferLifetimes
from tpusim.lowering.collective_choice import REDUCTIONS
from tpusim.lowering.collective_lowering import OBSERVED
from tpusim.lowering.collective_matmul import RingSums, ring_ops
from tpusim.lowering.decisions import LoweringDecisions
from tpusim.lowering.dependencies import BodyDependencies, dependencies_of
from tpusim.lowering.loop_stacks import with_stacks
from tpusim.lowering.offload import (
    LAST,
    arrivals,
    fetched_ahead,
    host_copies,
    names,
    with_host_copies,
)
from tpusim.lowering.on_chip import kept_on_chip, without_on_chip
from tpusim.lowering.on_chip_buffers import (
    handed_on_chip,
    on_chip_room,
    placed_on_chip,
    take_off_hbm,
    taken_on_chip,
)
from tpusim.lowering.on_chip_visits import Visits, made_bytes, visits_of
from tpusim.lowering.op_work import collective_bytes, flops_of, work_of
from tpusim.lowering.pass_manager import run_passes
from tpusim.lowering.ring_attention import kernel_ring, on_slowest
from tpusim.lowering.softmax_passes import SoftmaxPasses, softmax_passes
from tpusim.lowering.stack_copies import copied_stacks
from tpusim.partition import (
    ComputeNode,
    LoopNode,
    Node,
    PartitionedGraph,
    Purpose,
    Sizes,
    is_across,
)
from tpusim.plan import Compiler
from tpusim.program import (
    Alloc,
    Collective,
    CollectiveKind,
    CollectivePart,
    Compute,
    Dep,
    Loop,
    Mode,
    Op,
    Transfer,
    VectorWork,
)


@dataclass(frozen=True, slots=True)
class GradientDeps:
    """The complete gradients of weights: the buffers that hold them, and their last operations.

    held: weight -> tensor that holds the gradients of all its layers.
    after: weight -> operation to wait for, where it is not in program order.
    apart: weight -> its layers, where `held` is one tensor for each.
    """

    held: Mapping[str, str]
    after: Mapping[str, str]
    apart: Mapping[str, int] = field(default_factory=dict)

    def frees(self, weight: str) -> tuple[str, ...]:
        """Return the tensors that the last reader of a weight's gradients frees."""
        held = self.held.get(weight)
        return (held,) * self.apart.get(weight, 1) if held else ()

    def deps(self, weight: str) -> tuple[Dep, ...]:
        """Return the dependencies of a reader of a weight's gradient."""
        return (Dep(self.after[weight]),) if weight in self.after else ()


class LoweredBody(NamedTuple):
    """The body of a loop, its complete gradients, and its collectives that cross slices.

    before, after: of each iteration, what runs before the loop and after it.
    ahead: buffers that are allocated for all iterations before the first.
    whole: weight -> buffer of its whole gradient, of which the optimizer takes a part.
    waiting: its matmuls that are rings and run after all iterations, where no loop is left.
    """

    before: tuple[Op, ...]
    ops: tuple[Op, ...]
    after: tuple[Op, ...]
    ahead: tuple[Alloc, ...]
    reduced: Mapping[str, str]
    crossing: tuple[str, ...]
    whole: Mapping[str, str]
    waiting: tuple[str, ...]


Bodies: TypeAlias = dict[tuple[int, bool], LoweredBody]
"""Bodies of loops, by the identity of the nodes that they are made of, and whether they run once:
a loop of one iteration stacks no gradients."""


class BodyLowerer:
    """Lower the bodies of one partitioned graph.

    known: bodies of loops that are lowered already.
    """

    def __init__(
        self,
        sizes: Sizes,
        partitioned: PartitionedGraph,
        decisions: LoweringDecisions,
        known: Bodies | None = None,
    ) -> None:
        self.known = known
        self.sizes = sizes
        self.partitioned = partitioned
        self.decisions = decisions
        self.outside = dict(partitioned.gradients)
        self.offload = decisions.choices.remat.offload
        self.memory = BufferLifetimes(
            sizes,
            decisions.buffers,
            decisions.choices.numerics.of("grad"),
            frozenset(self.outside.values()),
            self.offload,
            partitioned.nodes,
            decisions.choices.repeated,
            OBSERVED not in decisions.choices.compiler.without_passes,
        )
        self.reduced: dict[str, str] = {}
        self.waiting: tuple[str, ...] = ()
        self.crossing: list[str] = []
        self.ahead: dict[str, tuple[Alloc, ...]] = {}
        self.on_chip: Mapping[str, int] = {}
        self.visits = Visits()
        self.softmaxes = SoftmaxPasses()
        self._room = on_chip_room(decisions.chip, decisions.choices.compiler)
        self.sums = RingSums.of(decisions.chip, self._room)

    def passes(
        self, given: Mapping[str, str] | None = None
    ) -> tuple[list[tuple[Op, ...]], GradientDeps]:
        """Return the operations of each pass of the step, and the gradients after them.

        given: buffers that it finds and frees, each with the operation that wrote it.
        """
        kept = tuple(self.outside.values())
        bodies = self.bodies(self.partitioned.groups, kept, given=given)
        outside = {w: self.memory.taken_over.get(key, key) for w, key in self.outside.items()}
        held = {**self.memory.layer_gradients, **outside}
        return bodies, GradientDeps(held, self.reduced, self.memory.apart)

    def bodies(
        self,
        groups: Sequence[Sequence[Node]],
        kept: Sequence[str],
        loop_node: LoopNode | None = None,
        outside: Mapping[str, str] | None = None,
        given: Mapping[str, str] | None = None,
    ) -> list[tuple[Op, ...]]:
        """Return the operations of each pass of one body, that of `loop_node` if given.

        outside: buffers of the body around it that it uses, each with the operation that wrote it.
        given: buffers of earlier operations that it frees, each with the one that wrote it.
        """
        outside, given = outside or {}, given or {}
        carried, gradients = (loop_node.carried, loop_node.gradients) if loop_node else ((), ())
        loads = [key for _, key in loop_node.copied] if loop_node else []
        passes = [self._entries(nodes, loop_node) for nodes in groups]
        if loop_node and loop_node.scan.unrolled:
            passes = [list(part) for part in layer_parts(passes[0])]
        lives = self.memory.lives(passes, kept, loads, outside, given, loop_node)
        if loop_node is not None:
            of_weights = dict(loop_node.gradients).values()
            self.ahead[loop_node.name] = self.memory.allocated_ahead(of_weights)
        whole = list(chain.from_iterable(passes))
        all_lives = list(chain.from_iterable(lives))
        around_visits, self.visits = self.visits, Visits()
        if loop_node is None:
            self.on_chip = self._placed_on_chip(whole, all_lives)
            self.visits = self._visits(whole, all_lives)
        elif loop_node.scan.on_chip:
            handed_on = self.memory.carries(loop_node).values()
            self.on_chip = {**self.on_chip, **self._placed_on_chip(whole, all_lives, handed_on)}
        take_off_hbm(whole, all_lives, self.memory.names, self._room)
        softmaxes = softmax_passes(
            whole,
            self.memory.inside,
            self.sizes,
            self.decisions.buffers,
            self.decisions.chip.generation,
        )
        rings = (each for each in whole if isinstance(each, CollectiveMatmul))
        self.waiting = tuple(ring.name for ring in rings if ring.waits)
        self.crossing += [
            each.name for each in whole if isinstance(each, PlannedCollective) and _crosses(each)
        ]
        ends_waiting = loop_node is not None and not self.decisions.ideal
        waits = dependencies_of(whole, carried, {**outside, **given}, ends_waiting)
        firsts = accumulate((len(one) for one in passes[:-1]), initial=0)
        around, self.softmaxes = self.softmaxes, softmaxes
        made = [self._pass(*each, waits) for each in zip(passes, lives, firsts, strict=True)]
        self.softmaxes, self.visits = around, around_visits
        self.reduced |= {
            weight: waits.makers[key]
            for weight, key in chain(gradients, self.partitioned.gradients)
            if key in waits.makers
        }
        return made

    def _placed_on_chip(
        self,
        entries: Sequence[Entry],
        lives: Sequence[BufferEvents],
        handed_on: Collection[str] = (),
    ) -> dict[str, int]:
        """Return the buffers of a body that stay on the chip, each with 1.

        handed_on: keys of the buffers that a layer hands on to the next.
        """
        names = self.memory.names
        sizes = {key: float(self.memory.size(key)) for key in handed_on}
        handed = handed_on_chip(entries, sizes, names, self._room)
        room = self._room - sum(sizes[key] for key in handed)
        placed = handed | placed_on_chip(entries, lives, names, room)
        return handed | {key: placed[name] for key, name in names.items() if name in placed}

    def _visits(self, entries: Sequence[Entry], lives: Sequence[BufferEvents]) -> Visits:
        """Return the visits of the chip of the step's other buffers: of a net without loops."""
        if not self._room or any(isinstance(entry, LoopNode) for entry in entries):
            return Visits()
        names, buffers = self.memory.names, self.decisions.buffers
        taken = taken_on_chip(entries, lives, {names.get(key, key) for key in self.on_chip})
        sizes = made_bytes(entries, buffers, self.sizes, self.on_chip)
        return visits_of(entries, sizes, names, taken, self._room)

    def _entries(self, nodes: Sequence[Node], loop_node: LoopNode | None) -> list[Entry]:
        copies = host_copies(loop_node, self.offload) if loop_node else ()
        name = loop_node.name if loop_node else "step"
        return with_host_copies(
            run_passes(self.decisions, nodes, name, loop_node is not None), copies
        )

    def _pass(
        self,
        one: Sequence[Entry],
        lives: Sequence[BufferEvents],
        first: int,
        waits: BodyDependencies,
    ) -> tuple[Op, ...]:
        """Return the operations of a pass; `first` is its first entry's place among all passes."""
        ops: list[Op] = []
        for place, (entry, life) in enumerate(zip(one, lives, strict=True), first):
            before = waits.written.get(place, {})
            deps = waits.before.get(place, waits.of[place])
            deps = (*deps, *self.visits.waits.get(place, ()))
            ops.extend(self.visits.before.get(place, ()))
            ops.extend(self._operations(entry, deps, life, before, place))
            ops.extend(self.visits.after.get(place, ()))
        return tuple(ops)

    def _operations(
        self,
        entry: Entry,
        deps: tuple[Dep, ...],
        life: BufferEvents,
        written: Mapping[str, str],
        place: int,
    ) -> tuple[Op, ...]:
        match entry:
            case ComputeNode():
                return (self._compute(entry, deps, life, self.visits.on_chip.get(place, {})),)
            case PlannedCollective():
                return (self._collective(entry, deps, life),)
            case CollectiveMatmul():
                whole = work_of(entry.compute, self.sizes, self.decisions.buffers)
                whole = self.softmaxes.work(entry.name, whole)
                ring = ring_ops(entry, self.sizes, whole, deps, self.sums)
                return _holding(ring, life)
            case RingAttention():
                balanced = self.decisions.choices.sharding.context.balanced
                ring = kernel_ring(entry, self.sizes, self.decisions.buffers, deps, balanced)
                return _holding(ring, life)
            case HostCopy():
                return (self._transfer(entry, deps, life),)
            case LoopNode():
                loop = self._loop(entry, {key: written.get(key, "") for key in entry.outside})
                return (*_start(entry.scan, deps), *_holding(loop, life))

    def _loop(self, loop_node: LoopNode, outside: Mapping[str, str]) -> tuple[Op, ...]:
        """Return a loop, with the operations around it if it fetches from the host."""
        made = self._trip(loop_node, outside)
        name, trips = loop_node.scan.name, loop_node.scan.trips
        loop = Loop(name=name, trips=trips, body=made.ops)
        if loop_node.scan.unrolled:
            parts = (
                Loop(name=f"{name}/gathers", trips=trips, body=made.before),
                loop,
                Loop(name=f"{name}/gradients", trips=trips, body=made.after),
            )
            life = BufferEvents(allocs=[*made.ahead] * trips)
            return _holding(tuple(part for part in parts if part.body), life)
        if loop_node.scan.phase is not Phase.BACKWARD:
            return (loop,)
        about = self.sizes, self.decisions.buffers, self.decisions.choices
        copies = () if self.decisions.ideal else copied_stacks(loop_node, made.ops, *about)
        if copies:
            copied = tuple(alloc.tensor for copy in copies for alloc in copy.allocs)
            return (*copies, replace(loop, frees=copied))
        ops = fetched_ahead(loop, made.waiting)
        last = {name.removesuffix(LAST): name for name in names(ops) if name.endswith(LAST)}
        self.reduced |= {w: last[n] for w, n in self.reduced.items() if n in last}
        self.crossing = [last.get(name, name) for name in self.crossing]
        return ops

    def _trip(self, loop_node: LoopNode, outside: Mapping[str, str]) -> LoweredBody:
        """Return the body of a loop; parts of a model with the same layers share it."""
        if self.known is None:
            return self._new_trip(loop_node, outside)
        like = id(loop_node.body), loop_node.scan.trips == 1
        found = self.known.get(like)
        if found is None:
            found = self.known[like] = self._new_trip(loop_node, outside)
        else:
            self.reduced |= found.reduced
            self.crossing += found.crossing
            self.memory.whole |= found.whole
        return found

    def _new_trip(self, loop_node: LoopNode, outside: Mapping[str, str]) -> LoweredBody:
        buffers, device = self.decisions.buffers, self.decisions.chip.device
        crossing, reduced = len(self.crossing), set(self.reduced)
        around, self.on_chip = self.on_chip, kept_on_chip(loop_node, self.sizes, buffers, device)
        parts = self.bodies([loop_node.body], kept=(), loop_node=loop_node, outside=outside)
        self.on_chip = around
        before, body, after = parts if loop_node.scan.unrolled else ((), *parts, ())
        if not (self.decisions.ideal or loop_node.scan.unrolled):
            arriving = arrivals(host_copies(loop_node, self.offload))
            grad_dtype = self.memory.grad_dtype
            body = with_stacks(loop_node, body, self.sizes, buffers, grad_dtype, arriving)
        return LoweredBody(
            before,
            body,
            after,
            self.ahead.pop(loop_node.name, ()),
            {weight: op for weight, op in self.reduced.items() if weight not in reduced},
            tuple(self.crossing[crossing:]),
            {w: key for w, _ in loop_node.gradients if (key := self.memory.whole.get(w))},
            self.waiting,
        )

    def _transfer(self, copy: HostCopy, deps: tuple[Dep, ...], life: BufferEvents) -> Transfer:
        return Transfer(
            name=copy.name,
            phase=copy.phase,
            kind=copy.kind,
            scope=copy.tensor,
            deps=deps,
            bytes=self.memory.stacked(copy.key).bytes,
            allocs=tuple(life.allocs),
            frees=tuple(life.frees),
        )

    def _compute(
        self,
        compute: ComputeNode,
        deps: tuple[Dep, ...],
        life: BufferEvents,
        visiting: Mapping[str, int],
    ) -> Compute:
        buffers = self.decisions.buffers
        work = self.softmaxes.work(compute.name, work_of(compute, self.sizes, buffers))
        here = {**self.on_chip, **visiting}
        work = without_on_chip(work, compute, here, self.sizes, buffers)
        return Compute(
            name=compute.name,
            phase=compute.phase,
            scope=compute.op.name,
            deps=deps,
            work=on_slowest(work, self.decisions.choices.sharding.context.balanced),
            flops=flops_of(compute, self.sizes),
            allocs=tuple(life.allocs),
            frees=tuple(life.frees),
        )

    def _collective(
        self, planned: PlannedCollective, deps: tuple[Dep, ...], life: BufferEvents
    ) -> Collective:
        first, sizes = planned.collectives[0], self.sizes
        each = [collective_bytes(c, sizes) for c in planned.collectives]
        several = zip(planned.collectives, each, strict=True) if len(each) > 1 else ()
        return Collective(
            name=planned.name,
            phase=first.phase,
            kind=first.kind,
            axes=first.axes,
            bytes=sum(each),
            dtype=sizes.dtype(first.dtype),
            mode=planned.mode,
            algorithm=_algorithm(planned, self.decisions.choices.compiler),
            scope=first.tensor,
            asked=first.asked,
            parts=tuple(CollectivePart(c.tensor, nbytes) for c, nbytes in several),
            deps=(*deps, *(Dep(name) for name in planned.after)),
            allocs=tuple(life.allocs),
            frees=tuple(life.frees),
        )


def _algorithm(planned: PlannedCollective, compiler: Compiler) -> str:
    """Return the algorithm of a collective: the lowering's, or `best` if it is asked for."""
    several = (CollectiveKind.ALL_GATHER, *REDUCTIONS)
    best = compiler.collectives == "best" and planned.collectives[0].kind in several
    return "best" if best else planned.algorithm


def _start(scan: Scan, deps: tuple[Dep, ...]) -> tuple[Compute, ...]:
    """Return the wait of a loop for what it depends on, if it does, as it begins."""
    if not deps:
        return ()
    name, work = f"{scan.name}/begin", VectorWork(0, 0, 0)
    return (Compute(name=name, phase=scan.phase, scope=scan.name, deps=deps, work=work),)


def _holding(ops: tuple[Op, ...], life: BufferEvents) -> tuple[Op, ...]:
    """Return the operations of a loop or a ring: the first allocates, and the last one frees.

    Those beside the core do neither, as they may run later.
    """
    first, *_, last = [at for at, op in enumerate(ops) if isinstance(op, Compute | Loop)] * 2
    held = list(ops)
    for at, change in (
        (first, {"allocs": (*held[first].allocs, *life.allocs)}),
        (last, {"frees": (*held[last].frees, *life.frees)}),
    ):
        held[at] = replace(held[at], **change)
    return tuple(held)


def _crosses(planned: PlannedCollective) -> bool:
    """Return True if it reduces gradients across slices beside the core."""
    first = planned.collectives[0]
    gradient = first.purpose is Purpose.GRADIENT
    return planned.mode is Mode.ASYNC and gradient and is_across(first.axes)
