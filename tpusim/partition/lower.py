"""The second half of partitioning: a structure becomes the program of one device.

The sizes of the axes give every extent, the lowering decides how each collective runs, and the
order of the operations decides when each buffer lives.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from tpusim.graph import Graph
from tpusim.hardware import Placement, Slice
from tpusim.partition import optimizer
from tpusim.partition.accumulate import Gradients, accumulated
from tpusim.partition.decide import Decisions
from tpusim.partition.experts import buffers_of, loads
from tpusim.partition.feed import batch_copy
from tpusim.partition.kernel_rings import kernel_ring, on_slowest
from tpusim.partition.layout import across, is_across
from tpusim.partition.liveness import Life, Memory
from tpusim.partition.offload import (
    LAST,
    arrivals,
    fetched_ahead,
    host_copies,
    names,
    with_host_copies,
)
from tpusim.partition.passes import (
    Entry,
    HostCopy,
    KernelRing,
    Planned,
    Ring,
)
from tpusim.partition.plan import Plan
from tpusim.partition.quantise import check_dtypes
from tpusim.partition.rings import ring_loop
from tpusim.partition.sizes import Sizes
from tpusim.partition.stacks import with_stacks
from tpusim.partition.template import Calc, Nest, Node, Purpose, Template
from tpusim.partition.travel import cast_before
from tpusim.partition.waits import Waits
from tpusim.partition.work import buffer_bytes, flops_of, work_of
from tpusim.phase import Phase
from tpusim.program import Barrier, Collective, Compute, Dep, Loop, Mode, Op, Program, Transfer


def lower(
    template: Template, graph: Graph, plan: Plan, pod: Slice, placement: Placement
) -> Program:
    """The program of one device of `pod`, whose mesh lies on the torus as `placement` says.

    Raises PlanError for a matmul in a dtype that the chip has no rate for.
    """
    check_dtypes(plan, pod.chip)
    chosen = loads(graph.sizes.get("expert", 0), plan.expert_skew, plan.seed)
    room = buffers_of(plan, graph.sizes)
    sizes = Sizes(graph.sizes, plan.active_axes, plan.dtype, plan.param_dtype, chosen, room)
    decisions = Decisions(template, sizes, plan, pod, placement)
    outside = dict(template.gradients)
    memory = Memory(
        sizes, decisions.buffers, plan.grad_dtype, frozenset(outside.values()), plan.offload
    )
    lowerer = _Lowerer(sizes, template, decisions, memory, plan.offload)
    body = lowerer.body(template.nodes, kept=tuple(outside.values()))
    gradients = Gradients({**memory.gradients, **outside}, lowerer.reduced)
    held = tuple(memory.left_over)
    if plan.microbatches > 1:
        body, gradients = accumulated(body, gradients, template.weights, plan, sizes, held)
        held = ()
    body = (*body, *_barrier(plan, lowerer.crossing))
    return Program(
        name=graph.name,
        axes=tuple(plan.mesh.items()),
        body=(
            batch_copy(graph, template, plan, sizes),
            *_with_optimizer(body, template, plan, sizes, gradients, held),
        ),
        resident=optimizer.resident(template.weights, plan, sizes),
    )  # fmt: skip


def _barrier(plan: Plan, crossing: Sequence[str]) -> tuple[Barrier, ...]:
    """The slices wait for each other once a step, when all gradients have crossed."""
    axes = across(tuple(plan.active_axes))
    deps = tuple(Dep(name) for name in crossing)
    return (Barrier(name="slices", phase=Phase.BACKWARD, axes=axes, deps=deps),) if axes else ()


def _with_optimizer(
    body: tuple[Op, ...], template: Template, plan: Plan, sizes: Sizes, gradients: Gradients,
    held: tuple[str, ...],
) -> tuple[Op, ...]:  # fmt: skip
    """Cast the weights, run forward and backward, update the weights.

    held: tensors that the backward pass holds to its end.
    """
    shards = cast_before(template, plan)
    cast = optimizer.cast(tuple(w for w in template.weights if w.name in shards), plan, sizes)
    updates = [
        replace(
            optimizer.update(weight, plan, sizes, gradients.held.get(weight.name, "")),
            deps=gradients.deps(weight.name),
        )
        for weight in template.weights
    ]
    copies = (cast.allocs[0].tensor,) if cast else ()
    updates[0] = replace(updates[0], frees=(*updates[0].frees, *held, *copies))
    moments = optimizer.moments(template.weights, plan, sizes) if plan.offload_optimizer else ()
    clip = optimizer.clip(template.weights, plan, sizes, gradients)
    return (*((cast,) if cast else ()), *body, *clip, *optimizer.streamed(updates, moments))


class _Lowerer:
    """Lowers the bodies of one structure."""

    def __init__(
        self, sizes: Sizes, template: Template, decisions: Decisions, memory: Memory,
        offload: Collection[str],
    ) -> None:  # fmt: skip
        self.sizes = sizes
        self.template = template
        self.decisions = decisions
        self.memory = memory
        self.offload = offload
        self.reduced: dict[str, str] = {}
        self.crossing: list[str] = []

    def body(
        self,
        nodes: Sequence[Node],
        kept: Sequence[str],
        nest: Nest | None = None,
        outside: Mapping[str, str] | None = None,
    ) -> tuple[Op, ...]:
        """The operations of one body, of a loop where `nest` is one.

        outside: buffers of the body around it that it uses, each with the operation that wrote it.
        """
        carried, gradients = (nest.carried, nest.gradients) if nest else ((), ())
        loads = [key for _, key in nest.copied] if nest else []
        copies = host_copies(nest, self.offload) if nest else ()
        entries = with_host_copies(self.decisions.entries(nodes, nest is not None), copies)
        lives = self.memory.lives(entries, kept, loads, outside or ())
        self.crossing += [entry.name for entry in entries
                          if isinstance(entry, Planned) and _crosses(entry)]  # fmt: skip
        waits = Waits(entries, carried, outside or {})
        ops: list[Op] = []
        for place, (entry, life) in enumerate(zip(entries, lives, strict=True)):
            ops.extend(self._operations(entry, waits.of(place, entry), life, waits.written))
            waits.passed(entry)
        self.reduced |= {
            weight: waits.makers[key]
            for weight, key in chain(gradients, self.template.gradients)
            if key in waits.makers
        }
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
                return self._loop(entry, {key: written.get(key, "") for key in entry.outside})

    def _loop(self, nest: Nest, outside: Mapping[str, str]) -> tuple[Op, ...]:
        """A loop, with what stands before and behind it where it fetches from the host."""
        body = self.body(nest.body, kept=(), nest=nest, outside=outside)
        if self.decisions.plan.lowering != "ideal":
            arriving = arrivals(host_copies(nest, self.offload))
            buffers, grad_dtype = self.decisions.buffers, self.memory.grad_dtype
            body = with_stacks(nest, body, self.sizes, buffers, grad_dtype, arriving)
        loop = Loop(name=nest.scan.name, trips=nest.scan.trips, body=body)
        if nest.scan.phase is not Phase.BACKWARD:
            return (loop,)
        ops = fetched_ahead(loop)
        last = {name.removesuffix(LAST): name for name in names(ops) if name.endswith(LAST)}
        self.reduced |= {w: last[n] for w, n in self.reduced.items() if n in last}
        self.crossing = [last.get(name, name) for name in self.crossing]
        return ops

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


def _crosses(planned: Planned) -> bool:
    """Whether it takes gradients across slices beside the core."""
    first = planned.comms[0]
    gradient = first.purpose is Purpose.GRADIENT
    return planned.mode is Mode.ASYNC and gradient and is_across(first.axes)
