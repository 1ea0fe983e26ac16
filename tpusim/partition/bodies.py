"""The bodies of a structure as the operations of one device: its passes and its loops."""

from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from typing import NamedTuple, TypeAlias

from tpusim.partition.accumulate import Gradients
from tpusim.partition.decide import entries
from tpusim.partition.decisions import Decisions
from tpusim.partition.kernel_rings import kernel_ring, on_slowest
from tpusim.partition.layout import is_across
from tpusim.partition.liveness import Life, Memory
from tpusim.partition.offload import (
    LAST,
    arrivals,
    fetched_ahead,
    host_copies,
    names,
    with_host_copies,
)
from tpusim.partition.passes import Entry, HostCopy, KernelRing, Planned, Ring
from tpusim.partition.plan import Plan
from tpusim.partition.rings import ring_loop
from tpusim.partition.sizes import Sizes
from tpusim.partition.stacks import with_stacks
from tpusim.partition.template import Calc, Nest, Node, Purpose, Template
from tpusim.partition.waits import Waits
from tpusim.partition.work import buffer_bytes, flops_of, work_of
from tpusim.phase import Phase
from tpusim.program import Collective, Compute, Dep, Loop, Mode, Op, Transfer, Vector


class Body(NamedTuple):
    """The body of a loop; where its gradients are whole, and what of it crosses slices."""

    ops: tuple[Op, ...]
    reduced: Mapping[str, str]
    crossing: tuple[str, ...]


Bodies: TypeAlias = dict[int, Body]
"""Bodies of loops, by the identity of the nodes that they are made of."""


class Lowerer:
    """Lowers the bodies of one structure.

    known: bodies of loops that are lowered already. left_over: what each pass holds to its end,
    for whatever follows it to give back.
    """

    def __init__(
        self, sizes: Sizes, template: Template, decisions: Decisions, plan: Plan,
        known: Bodies | None = None,
    ) -> None:  # fmt: skip
        self.known = known
        self.sizes = sizes
        self.template = template
        self.decisions = decisions
        self.outside = dict(template.gradients)
        self.offload = plan.offload
        self.memory = Memory(
            sizes, decisions.buffers, plan.grad_dtype, frozenset(self.outside.values()),
            plan.offload, template.nodes,
        )  # fmt: skip
        self.reduced: dict[str, str] = {}
        self.crossing: list[str] = []
        self.left_over: list[list[str]] = []

    def passes(self) -> tuple[list[tuple[Op, ...]], Gradients]:
        """The operations of each pass, and where the gradients of the weights are after them."""
        bodies = self.bodies(self.template.groups, tuple(self.outside.values()))
        return bodies, Gradients({**self.memory.gradients, **self.outside}, self.reduced)

    def bodies(
        self, groups: Sequence[Sequence[Node]], kept: Sequence[str], nest: Nest | None = None,
        outside: Mapping[str, str] | None = None,
    ) -> list[tuple[Op, ...]]:  # fmt: skip
        """The operations of each pass of one body, which is that of a loop where `nest` is one.

        outside: buffers of the body around it that it uses, each with the operation that wrote it.
        """
        carried, gradients = (nest.carried, nest.gradients) if nest else ((), ())
        loads = [key for _, key in nest.copied] if nest else []
        passes = [self._entries(nodes, nest) for nodes in groups]
        lives, left_over = self.memory.lives(passes, kept, loads, outside or ())
        whole = list(chain.from_iterable(passes))
        self.crossing += [each.name for each in whole
                          if isinstance(each, Planned) and _crosses(each)]  # fmt: skip
        waits = Waits(whole, carried, outside or {})
        firsts = accumulate((len(one) for one in passes[:-1]), initial=0)
        made = [self._pass(*each, waits) for each in zip(passes, lives, firsts, strict=True)]
        self.reduced |= {
            weight: waits.makers[key]
            for weight, key in chain(gradients, self.template.gradients)
            if key in waits.makers
        }
        if nest is None:
            self.left_over = left_over
        return made

    def _entries(self, nodes: Sequence[Node], nest: Nest | None) -> list[Entry]:
        copies = host_copies(nest, self.offload) if nest else ()
        return with_host_copies(entries(self.decisions, nodes, nest is not None), copies)

    def _pass(
        self, one: Sequence[Entry], lives: Sequence[Life], first: int, waits: Waits
    ) -> tuple[Op, ...]:
        """The operations of a pass, whose first entry has that place among those of all passes."""
        ops: list[Op] = []
        for place, (entry, life) in enumerate(zip(one, lives, strict=True), first):
            ops.extend(self._operations(entry, waits.of(place, entry), life, waits.written))
            waits.passed(entry)
        return tuple(ops)

    def _operations(
        self, entry: Entry, deps: tuple[Dep, ...], life: Life, written: Mapping[str, str]
    ) -> tuple[Op, ...]:
        match entry:
            case Calc():
                return (self._compute(entry, deps, life),)
            case Planned():
                return (self._collective(entry, deps, life),)
            case Ring():
                return (ring_loop(entry, self.sizes, self.decisions.buffers, deps),)
            case KernelRing():
                plan = self.decisions.plan
                return kernel_ring(entry, self.sizes, self.decisions.buffers, deps, plan)
            case HostCopy():
                return (self._transfer(entry, deps, life),)
            case Nest():
                loop = self._loop(entry, {key: written.get(key, "") for key in entry.outside})
                return (*_around(entry, life), *loop)

    def _loop(self, nest: Nest, outside: Mapping[str, str]) -> tuple[Op, ...]:
        """A loop, with what stands before and behind it where it fetches from the host."""
        body = self._trip(nest, outside)
        loop = Loop(name=nest.scan.name, trips=nest.scan.trips, body=body)
        if nest.scan.phase is not Phase.BACKWARD:
            return (loop,)
        ops = fetched_ahead(loop)
        last = {name.removesuffix(LAST): name for name in names(ops) if name.endswith(LAST)}
        self.reduced |= {w: last[n] for w, n in self.reduced.items() if n in last}
        self.crossing = [last.get(name, name) for name in self.crossing]
        return ops

    def _trip(self, nest: Nest, outside: Mapping[str, str]) -> tuple[Op, ...]:
        """The body of a loop; parts of a model with the same layers have it in common."""
        if self.known is None:
            return self._new_trip(nest, outside)
        like = id(nest.body)
        if like not in self.known:
            crossing, reduced = len(self.crossing), set(self.reduced)
            body = self._new_trip(nest, outside)
            made = {weight: op for weight, op in self.reduced.items() if weight not in reduced}
            self.known[like] = Body(body, made, tuple(self.crossing[crossing:]))
            return body
        found = self.known[like]
        self.reduced |= found.reduced
        self.crossing += found.crossing
        return found.ops

    def _new_trip(self, nest: Nest, outside: Mapping[str, str]) -> tuple[Op, ...]:
        (body,) = self.bodies([nest.body], kept=(), nest=nest, outside=outside)
        if self.decisions.plan.lowering == "ideal":
            return body
        arriving = arrivals(host_copies(nest, self.offload))
        buffers, grad_dtype = self.decisions.buffers, self.memory.grad_dtype
        return with_stacks(nest, body, self.sizes, buffers, grad_dtype, arriving)

    def _transfer(self, copy: HostCopy, deps: tuple[Dep, ...], life: Life) -> Transfer:
        return Transfer(
            name=copy.name, phase=copy.phase, kind=copy.kind, scope=copy.tensor, deps=deps,
            bytes=buffer_bytes(self.decisions.buffers[copy.key], self.sizes),
            allocs=tuple(life.allocs), frees=tuple(life.frees),
        )  # fmt: skip

    def _compute(self, calc: Calc, deps: tuple[Dep, ...], life: Life) -> Compute:
        return Compute(
            name=calc.name, phase=calc.phase, scope=calc.op.name, deps=deps,
            work=on_slowest(work_of(calc, self.sizes, self.decisions.buffers), self.decisions.plan),
            flops=flops_of(calc, self.sizes),
            allocs=tuple(life.allocs), frees=tuple(life.frees),
        )  # fmt: skip

    def _collective(self, planned: Planned, deps: tuple[Dep, ...], life: Life) -> Collective:
        first, sizes = planned.comms[0], self.sizes
        nbytes = sum(sizes.nbytes(c.payload, c.dtype) for c in planned.comms)
        return Collective(
            name=planned.name, phase=first.phase, kind=first.kind, axes=first.axes, bytes=nbytes,
            dtype=sizes.dtype(first.dtype),
            mode=planned.mode, algorithm=self.decisions.algorithm(planned),
            scope=first.tensor, asked=first.asked,
            deps=(*deps, *(Dep(name) for name in planned.waits_for)),
            allocs=tuple(life.allocs), frees=tuple(life.frees),
        )  # fmt: skip


def _around(nest: Nest, life: Life) -> tuple[Compute, ...]:
    """What takes the buffers of a loop where no other operation of the core does."""
    if not life.allocs:
        return ()
    return (
        Compute(
            name=f"{nest.scan.name}/begin", phase=nest.scan.phase, scope=nest.scan.name,
            work=Vector(0, 0, 0), allocs=tuple(life.allocs),
        ),
    )  # fmt: skip


def _crosses(planned: Planned) -> bool:
    """Whether it takes gradients across slices beside the core."""
    first = planned.comms[0]
    gradient = first.purpose is Purpose.GRADIENT
    return planned.mode is Mode.ASYNC and gradient and is_across(first.axes)
