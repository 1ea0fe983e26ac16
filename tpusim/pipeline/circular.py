"""Circular pipelines: one program, which all stages run at the same time.

A loop holds one microbatch per stage. Each iteration runs a chunk of layers on it, and hands it on
to the next stage by a collective permute; a stage has `virtual_stages` chunks, and a microbatch
comes round as often (GSPMD, arXiv:2105.04663, section 3.3; MaxText, pipeline.py). While the
pipeline fills and drains, stages compute results that are never read: with p stages, m microbatches
and R chunks, p-1 of m R + p - 1 iterations are not needed. The embedding and the loss are outside
of the loops, where the stages share the batch. Transfers between stages are in
`circular_iteration.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tpusim.base.errors import PlanError
from tpusim.base.phase import Phase
from tpusim.graph import ModelPart
from tpusim.hardware import Placement, Slice
from tpusim.lowering import (
    Bodies,
    GradientDeps,
    accumulator,
    barrier,
    batch_copy,
    cast_before,
    check_dtypes,
    gathers,
    names,
    optimizer,
    reduce_once,
    with_optimizer,
    zeros,
)
from tpusim.partition import DTYPE_BYTES, PartitionedGraph, StoredWeight
from tpusim.pipeline.circular_iteration import IterationBuilder, Ops, loop_state
from tpusim.pipeline.segments import LoweredPart, lower_part, taken_by
from tpusim.plan import Plan, edge_plan, stage_plan
from tpusim.program import (
    Alloc,
    Compute,
    Flops,
    Loop,
    Op,
    PassKind,
    Program,
    VectorWork,
)

PIPELINE, BUBBLE_SUFFIX = "pipeline", " (bubble)"
"""Name of the loops, and suffix of iterations whose results are never read."""


@dataclass(frozen=True, slots=True)
class CircularParts:
    """The parts of a model that the program is made of, with their partitioned graphs.

    chunk: the layers of one iteration.
    embedding, head: the parts before and after the loops.
    """

    chunk: tuple[ModelPart, PartitionedGraph]
    embedding: tuple[ModelPart, PartitionedGraph]
    head: tuple[ModelPart, PartitionedGraph]


def check_circular(plan: Plan) -> None:
    """Raise PlanError where a microbatch would come round before its stage has run the others."""
    if plan.pipeline.virtual_stages > 1 and plan.microbatches < plan.stages:
        raise PlanError(
            f"plan.microbatches is {plan.microbatches}, too few for a circular pipeline of "
            f"{plan.stages} stages x {plan.pipeline.virtual_stages} virtual stages; write at least "
            f"{plan.stages}"
        )


def circular_program(
    name: str, pieces: CircularParts, plan: Plan, pod: Slice, placement: Placement
) -> Program:
    """Return the program of one device; all stages run it."""
    check_dtypes(plan.dtypes, pod.chip)
    inner, edges, known = stage_plan(plan), edge_plan(plan), Bodies()
    chunk = lower_part(*pieces.chunk, inner, pod, placement, known, summed=True, circular=True)
    embedding, head = (
        lower_part(*piece, edges, pod, placement, known, summed=False)
        for piece in (pieces.embedding, pieces.head)
    )
    head = _with_own_names(head, embedding)
    weights, sums = _weights(plan, chunk, embedding, head)
    loops = _PassLoops(plan, chunk)
    terms = GradientDeps({weight: alloc.tensor for weight, alloc in sums.items()}, {})
    reduced = reduce_once(weights, terms, inner, chunk.sizes, pod, placement)
    gradients = _gradients(embedding, head, reduced.gradients)
    sizes = embedding.sizes
    body = (
        *_passes(plan, loops, embedding, head, zeros(tuple(sums.values()))),
        *_sum_of_both_uses(embedding, head, plan),
        *reduced.ops,
        *barrier(inner, reduced.crossing),
    )
    shards = cast_before(chunk.partitioned, inner.dtypes).union(
        *(cast_before(part.partitioned, edges.dtypes) for part in (embedding, head))
    )
    return Program(
        name=name,
        axes=tuple(plan.mesh.items()),
        body=(
            batch_copy(embedding.part.graph, embedding.partitioned, edges, sizes),
            *with_optimizer(
                body,
                weights,
                shards,
                plan,
                sizes,
                gradients,
                (),
                optimizer.clip(weights, plan, sizes, gradients, loops.iterations.axes),
                gathers(weights, shards, plan, sizes, pod, placement),
            ),
        ),
        resident=optimizer.resident(weights, plan, sizes),
    )


def _weights(
    plan: Plan, chunk: LoweredPart, embedding: LoweredPart, head: LoweredPart
) -> tuple[tuple[StoredWeight, ...], dict[str, Alloc]]:
    """Return the weights of one device, of all its chunks, and the accumulators of the layers."""
    layers = tuple(
        replace(w, copies=w.copies * plan.pipeline.virtual_stages)
        for w in chunk.partitioned.weights
    )
    outer = {w.name: w for part in (embedding, head) for w in part.partitioned.weights}
    trained = [w for w in layers if w.name in chunk.gradients.held]
    return (*outer.values(), *layers), {
        w.name: accumulator(w, plan.dtypes, chunk.sizes) for w in trained
    }


def _gradients(embedding: LoweredPart, head: LoweredPart, layers: GradientDeps) -> GradientDeps:
    """Return the gradients of all weights after the loops."""
    each = (embedding.gradients, head.gradients, layers)
    held = {weight: tensor for found in each for weight, tensor in found.held.items()}
    return GradientDeps(held, {weight: op for found in each for weight, op in found.after.items()})


def _passes(
    plan: Plan, loops: "_PassLoops", embedding: LoweredPart, head: LoweredPart, cleared: Compute
) -> Ops:
    """Return both passes, with the waiting microbatches held around each loop."""
    held = loop_state(plan, loops.chunk)
    loss = (*head.ops(PassKind.BACKWARD), cleared)
    ahead = _around(embedding.ops(PassKind.FORWARD), loops.forward(), loss, held)
    place = len(ahead) - len(loss)
    after = embedding.ops(PassKind.BACKWARD)
    return (*ahead[:place], *_around(ahead[place:], loops.backward(), after, held))


class _PassLoops:
    """The loops of the forward and of the backward pass."""

    def __init__(self, plan: Plan, chunk: LoweredPart) -> None:
        self.plan = plan
        self.chunk = chunk
        self.iterations = IterationBuilder(plan, chunk)

    def forward(self) -> Ops:
        """Return all iterations of the forward pass."""
        made, phase = self.iterations, Phase.FORWARD
        return (*made.cleared(phase), *self._loops(made.forward(), phase))

    def backward(self) -> Ops:
        """Return all iterations of the backward pass."""
        made, phase = self.iterations, Phase.BACKWARD
        return (*made.cleared(phase), *self._loops(made.backward(), phase))

    def _loops(self, body: Ops, phase: Phase) -> Ops:
        """Return the iterations with results, and those that fill and drain the stages."""
        plan, name = self.plan, f"{PIPELINE}/{phase}"
        needed = Loop(
            name=name,
            trips=plan.microbatches * plan.pipeline.virtual_stages,
            body=_map_ops(body, self._on_all_stages),
        )
        idle = Loop(
            name=name + BUBBLE_SUFFIX, trips=plan.stages - 1, body=_map_ops(body, self._unneeded)
        )
        return (needed, idle)

    def _on_all_stages(self, op: Op) -> Op:
        """Return an operation of one stage's devices, counted on those of all stages."""
        if not isinstance(op, Compute):
            return op
        f, n = op.flops, self.plan.stages
        return replace(
            op, flops=Flops(n * f.model, n * f.recompute, n * f.redundant, n * f.padding)
        )

    def _unneeded(self, op: Op) -> Op:
        """Return an operation of an iteration whose result is never read."""
        name = op.name + BUBBLE_SUFFIX
        if isinstance(op, Loop):
            return replace(op, name=name)
        deps = tuple(replace(dep, op=dep.op + BUBBLE_SUFFIX) for dep in op.deps)
        if not isinstance(op, Compute):
            return replace(op, name=name, deps=deps)
        flops = Flops(redundant=self.plan.stages * op.flops.total)
        return replace(op, name=name, deps=deps, flops=flops)


def _around(
    before: Sequence[Op], inside: Sequence[Op], after: Sequence[Op], loop_state: Alloc
) -> Ops:
    """Return the operations, with `loop_state` held from `before` to the start of `after`."""
    last = max(place for place, op in enumerate(before) if isinstance(op, Compute))
    first = next(place for place, op in enumerate(after) if isinstance(op, Compute))
    ops = [*before, *inside, *after]
    taker, giver = ops[last], ops[len(before) + len(inside) + first]
    assert isinstance(taker, Compute)
    assert isinstance(giver, Compute)
    ops[last] = replace(taker, allocs=(*taker.allocs, loop_state))
    ops[len(before) + len(inside) + first] = replace(giver, frees=(*giver.frees, loop_state.tensor))
    return tuple(ops)


def _sum_of_both_uses(embedding: LoweredPart, head: LoweredPart, plan: Plan) -> Ops:
    """Return the sum of the gradients of a weight that is read before the loops and after them."""
    sums = []
    for name, weight in ((w.name, w) for w in head.partitioned.weights):
        if name in embedding.gradients.held and name in head.gradients.held:
            elements = head.sizes.elements(weight.updated)
            nbytes = elements * DTYPE_BYTES[plan.dtypes.grad]
            deps = (*embedding.gradients.deps(name), *head.gradients.deps(name))
            sums.append(
                Compute(
                    name=f"add/{name}",
                    phase=Phase.BACKWARD,
                    scope=name,
                    deps=deps,
                    work=VectorWork(2 * nbytes, nbytes, elements),
                    frees=(embedding.gradients.held[name],),
                )
            )
    return tuple(sums)


def _with_own_names(head: LoweredPart, other: LoweredPart) -> LoweredPart:
    """Return the head with other names for the tensors that it shares with a tied embedding."""
    bodies = [segment.body for segment in other.segments.values()]
    taken = {name for body in bodies for name in (*names(body), *taken_by(body))}

    def named(name: str) -> str:
        return f"{name} (head)" if name in taken else name

    def changed(op: Op) -> Op:
        if isinstance(op, Loop):
            return replace(op, name=named(op.name))
        deps = tuple(replace(dep, op=named(dep.op)) for dep in op.deps)
        return replace(
            op,
            name=named(op.name),
            deps=deps,
            frees=tuple(map(named, op.frees)),
            allocs=tuple(replace(alloc, tensor=named(alloc.tensor)) for alloc in op.allocs),
        )

    segments = {
        kind: replace(segment, body=_map_ops(segment.body, changed))
        for kind, segment in head.segments.items()
    }
    held, after = (
        {weight: named(name) for weight, name in found.items()}
        for found in (head.gradients.held, head.gradients.after)
    )
    return replace(head, segments=segments, gradients=GradientDeps(held, after))


def _map_ops(body: Sequence[Op], changed: Callable[[Op], Op]) -> tuple[Op, ...]:
    """Change all operations of a body, also within its loops."""
    return tuple(
        replace(loop, body=_map_ops(loop.body, changed))
        if isinstance(loop := changed(op), Loop)
        else loop
        for op in body
    )
