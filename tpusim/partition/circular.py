"""A circular pipeline: one program, which all stages run at the same time.

A loop holds one microbatch a stage. Each trip runs a chunk of layers on it, and hands it on to the
next stage by a collective permute; a stage has `virtual_stages` chunks, and a microbatch comes
round as often (GSPMD, arXiv:2105.04663, section 3.3; MaxText, pipeline.py). While the pipeline
fills and drains, stages compute what nobody reads: with p stages, m microbatches and R chunks, p-1
of m R + p - 1 trips are not needed. The embedding and the loss stand outside of the loops, where
the stages share the batch. What goes from stage to stage in a trip is in `trips.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tpusim.errors import PlanError
from tpusim.graph import Part
from tpusim.hardware import Placement, Slice
from tpusim.partition import optimizer
from tpusim.partition.accumulate import Gradients, accumulator, zeros
from tpusim.partition.bodies import Bodies
from tpusim.partition.feed import batch_copy
from tpusim.partition.lower import barrier, with_optimizer
from tpusim.partition.offload import names
from tpusim.partition.plan import Plan
from tpusim.partition.quantise import check_dtypes
from tpusim.partition.segments import Lowered, lowered, taken_by
from tpusim.partition.sizes import DTYPE_BYTES
from tpusim.partition.stages import edge_plan, stage_plan
from tpusim.partition.template import Template, Weight
from tpusim.partition.travel import cast_before
from tpusim.partition.trips import Ops, Trips, state
from tpusim.phase import Phase
from tpusim.program import (
    Alloc,
    Compute,
    Flops,
    Loop,
    Op,
    Program,
    Vector,
)
from tpusim.program.schedule import Pass

PIPELINE, BUBBLE = "pipeline", " (bubble)"
"""The name of the loops, and what the names of trips end with that nobody needs."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """The parts of a model that the program is made of, with their templates.

    chunk: the layers of one trip. embedding, head: what stands before and behind the loops.
    """

    chunk: tuple[Part, Template]
    embedding: tuple[Part, Template]
    head: tuple[Part, Template]


def check_circular(plan: Plan) -> None:
    """Raise PlanError where a microbatch would come round before its stage has run the others."""
    if plan.virtual_stages > 1 and plan.microbatches < plan.stages:
        raise PlanError(
            f"plan.microbatches is {plan.microbatches}, too few for a circular pipeline of "
            f"{plan.stages} stages x {plan.virtual_stages} virtual stages; write at least "
            f"{plan.stages}"
        )


def circular_program(
    name: str, pieces: Pieces, plan: Plan, pod: Slice, placement: Placement
) -> Program:
    """The program of one device; all stages run it."""
    check_dtypes(plan, pod.chip)
    inner, edges, known = stage_plan(plan), edge_plan(plan), Bodies()
    chunk = lowered(*pieces.chunk, inner, pod, placement, known, summed=True, trips=True)
    embedding, head = (
        lowered(*piece, edges, pod, placement, known, summed=False)
        for piece in (pieces.embedding, pieces.head)
    )
    head = _apart(head, embedding)
    weights, sums = _weights(plan, chunk, embedding, head)
    loops = _Loops(plan, chunk)
    gradients = _gradients(embedding, head, sums)
    sizes = embedding.sizes
    body = (
        *_passes(plan, loops, embedding, head, zeros(tuple(sums.values()))),
        *_both(embedding, head, plan), *barrier(inner, ()),
    )  # fmt: skip
    shards = {each for part in (embedding, head) for each in cast_before(part.template, edges)}
    return Program(
        name=name, axes=tuple(plan.mesh.items()),
        body=(
            batch_copy(embedding.part.graph, embedding.template, edges, sizes),
            *with_optimizer(
                body, weights, shards | cast_before(chunk.template, inner), plan, sizes, gradients,
                (), optimizer.clip(weights, plan, sizes, gradients, loops.trips.axes),
            ),
        ),
        resident=optimizer.resident(weights, plan, sizes),
    )  # fmt: skip


def _weights(
    plan: Plan, chunk: Lowered, embedding: Lowered, head: Lowered
) -> tuple[tuple[Weight, ...], dict[str, Alloc]]:
    """The weights of one device, of all its chunks; and the sums of the layers' gradients."""
    layers = tuple(
        replace(w, copies=w.copies * plan.virtual_stages) for w in chunk.template.weights
    )
    outer = {w.name: w for part in (embedding, head) for w in part.template.weights}
    trained = [w for w in layers if w.name in chunk.gradients.held]
    return (*outer.values(), *layers), {w.name: accumulator(w, plan, chunk.sizes) for w in trained}


def _gradients(embedding: Lowered, head: Lowered, sums: dict[str, Alloc]) -> Gradients:
    """Where the gradients of all weights are behind the loops."""
    held = {**embedding.gradients.held, **head.gradients.held}
    held |= {weight: alloc.tensor for weight, alloc in sums.items()}
    return Gradients(held, {**embedding.gradients.after, **head.gradients.after})


def _passes(
    plan: Plan, loops: "_Loops", embedding: Lowered, head: Lowered, cleared: Compute
) -> Ops:
    """The forward and the backward pass, with the microbatches that wait held around each loop."""
    held = state(plan, loops.chunk)
    loss = (*head.ops(Pass.BACKWARD), cleared)
    ahead = _around(embedding.ops(Pass.FORWARD), loops.forward(), loss, held)
    place = len(ahead) - len(loss)
    behind = embedding.ops(Pass.BACKWARD)
    return (*ahead[:place], *_around(ahead[place:], loops.backward(), behind, held))


class _Loops:
    """The loops of the forward and of the backward pass."""

    def __init__(self, plan: Plan, chunk: Lowered) -> None:
        self.plan = plan
        self.chunk = chunk
        self.trips = Trips(plan, chunk)

    def forward(self) -> Ops:
        """All trips of the forward pass."""
        trips, phase = self.trips, Phase.FORWARD
        return (*trips.cleared(phase), *self._loops(trips.forward(), phase))

    def backward(self) -> Ops:
        """All trips of the backward pass."""
        trips, phase = self.trips, Phase.BACKWARD
        return (*trips.cleared(phase), *self._loops(trips.backward(), phase))

    def _loops(self, body: Ops, phase: Phase) -> Ops:
        """The trips that are needed, and as many as stages fill and drain with."""
        plan, name = self.plan, f"{PIPELINE}/{phase}"
        needed = Loop(
            name=name, trips=plan.microbatches * plan.virtual_stages,
            body=_each(body, self._on_all_stages),
        )  # fmt: skip
        idle = Loop(name=name + BUBBLE, trips=plan.stages - 1, body=_each(body, self._unneeded))
        return (needed, idle)

    def _on_all_stages(self, op: Op) -> Op:
        """An operation of one stage's devices, counted on those of all stages."""
        if not isinstance(op, Compute):
            return op
        f, n = op.flops, self.plan.stages
        return replace(op, flops=Flops(n * f.model, n * f.recompute, n * f.redundant,
                                       n * f.padding))  # fmt: skip

    def _unneeded(self, op: Op) -> Op:
        """An operation of a trip that computes what nobody reads."""
        name = op.name + BUBBLE
        if isinstance(op, Loop):
            return replace(op, name=name)
        deps = tuple(replace(dep, op=dep.op + BUBBLE) for dep in op.deps)
        if not isinstance(op, Compute):
            return replace(op, name=name, deps=deps)
        flops = Flops(redundant=self.plan.stages * op.flops.total)
        return replace(op, name=name, deps=deps, flops=flops)


def _around(before: Sequence[Op], inside: Sequence[Op], after: Sequence[Op], state: Alloc) -> Ops:
    """The operations, with `state` held from the end of `before` to the beginning of `after`."""
    last = max(place for place, op in enumerate(before) if isinstance(op, Compute))
    first = next(place for place, op in enumerate(after) if isinstance(op, Compute))
    ops = [*before, *inside, *after]
    taker, giver = ops[last], ops[len(before) + len(inside) + first]
    assert isinstance(taker, Compute)
    assert isinstance(giver, Compute)
    ops[last] = replace(taker, allocs=(*taker.allocs, state))
    ops[len(before) + len(inside) + first] = replace(giver, frees=(*giver.frees, state.tensor))
    return tuple(ops)


def _both(embedding: Lowered, head: Lowered, plan: Plan) -> Ops:
    """The sum of the gradients of a weight that is read before the loops and behind them."""
    sums = []
    for name, weight in ((w.name, w) for w in head.template.weights):
        if name in embedding.gradients.held and name in head.gradients.held:
            elements = head.sizes.elements(weight.local)
            nbytes = elements * DTYPE_BYTES[plan.grad_dtype]
            deps = (*embedding.gradients.deps(name), *head.gradients.deps(name))
            sums.append(
                Compute(
                    name=f"add/{name}", phase=Phase.BACKWARD, scope=name, deps=deps,
                    work=Vector(2 * nbytes, nbytes, elements),
                    frees=(embedding.gradients.held[name],),
                )
            )  # fmt: skip
    return tuple(sums)


def _apart(head: Lowered, other: Lowered) -> Lowered:
    """The head with other names for what the embedding has too, where they are tied."""
    bodies = [segment.body for segment in other.segments.values()]
    taken = {name for body in bodies for name in (*names(body), *taken_by(body))}

    def named(name: str) -> str:
        return f"{name} (head)" if name in taken else name

    def changed(op: Op) -> Op:
        if isinstance(op, Loop):
            return replace(op, name=named(op.name))
        deps = tuple(replace(dep, op=named(dep.op)) for dep in op.deps)
        return replace(
            op, name=named(op.name), deps=deps, frees=tuple(map(named, op.frees)),
            allocs=tuple(replace(alloc, tensor=named(alloc.tensor)) for alloc in op.allocs),
        )  # fmt: skip

    segments = {
        kind: replace(segment, body=_each(segment.body, changed))
        for kind, segment in head.segments.items()
    }
    held, after = (
        {weight: named(name) for weight, name in found.items()}
        for found in (head.gradients.held, head.gradients.after)
    )
    return replace(head, segments=segments, gradients=Gradients(held, after))


def _each(body: Sequence[Op], changed: Callable[[Op], Op]) -> tuple[Op, ...]:
    """All operations of a body changed, those of its loops too."""
    return tuple(
        replace(loop, body=_each(loop.body, changed))
        if isinstance(loop := changed(op), Loop)
        else loop
        for op in body
    )
