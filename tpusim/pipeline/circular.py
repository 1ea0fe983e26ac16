"""Circular pipelines: one program, which all stages run at the same time.

A loop holds one microbatch per stage. Each iteration runs a chunk of layers on it, and hands it on
to the next stage by a collective permute; a stage has as many chunks as a microbatch comes round
(GSPMD, arXiv:2105.04663, section 3.3; MaxText, pipeline.py). While the pipeline fills and drains,
stages compute results that are never read: with p stages, m microbatches and R rounds, p-1 of
m R + p - 1 iterations are not needed.

Rounds whose chunks are alike are one loop. A model with layers of two kinds has two, one after the
other over the same stages, such as an encoder's and a decoder's (Parti, arXiv:2206.10789, section
3); what a decoder's layers read of the encoder goes round with their own tensor, as part of the
microbatch. The embedding, the loss, and what joins two loops are outside of them, where the stages
share the batch. Transfers between stages are in `circular_iteration.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tpusim.base.phase import Phase
from tpusim.frames import TrainingFrame, accumulator, choices_of, zeros
from tpusim.graph import ModelPart, Tensor
from tpusim.lowering import AskedPlace, Bodies, GradientDeps, cast_before, check_dtypes
from tpusim.partition import DTYPE_BYTES, LocalShape, PartitionedGraph, StoredWeight
from tpusim.pipeline.circular_iteration import CircularShape, IterationBuilder, Ops, loop_state
from tpusim.pipeline.own_names import OwnNames, map_ops
from tpusim.pipeline.segments import LoweredPart, lower_part
from tpusim.plan import STAGE_AXES, Numerics, Plan, edge_plan, stage_plan
from tpusim.program import (
    Alloc,
    Compute,
    Flops,
    Loop,
    Number,
    Op,
    PassKind,
    Program,
    Transfer,
    VectorWork,
)

PIPELINE, BUBBLE_SUFFIX = "pipeline", " (bubble)"
"""Name of the loops, and suffix of iterations whose results are never read."""


def loop_name(number: int, phase: Phase) -> str:
    """Return the name of a loop, counted from 0.

    >>> loop_name(0, Phase.FORWARD), loop_name(1, Phase.BACKWARD)
    ('pipeline/forward', 'pipeline 2/backward')
    """
    return f"{PIPELINE}{f' {number + 1}' if number else ''}/{phase}"


PartitionedPart = tuple[ModelPart, PartitionedGraph]


@dataclass(frozen=True, slots=True)
class CircularLoop:
    """A loop: its chunk of layers, with its partitioned graph.

    beside: tensors that are made before the loop and read behind it, but not by its layers.
    """

    chunk: PartitionedPart
    shape: CircularShape
    beside: tuple[Tensor, ...] = ()


@dataclass(frozen=True, slots=True)
class CircularParts:
    """The parts of a model that the program is made of.

    joints: what stands before each loop and after the last one; None for two loops that follow at
        once.
    """

    loops: tuple[CircularLoop, ...]
    joints: tuple[PartitionedPart | None, ...]


def circular_program(name: str, pieces: CircularParts, plan: Plan, place: AskedPlace) -> Program:
    """Return the program of one device; all stages run it."""
    check_dtypes(plan.numerics, place.pod.chip)
    inner, edges = choices_of(stage_plan(plan)), choices_of(edge_plan(plan))
    known = Bodies()
    names = OwnNames()
    chunks = tuple(
        lower_part(*loop.chunk, inner, place, known, summed=True, circular="loop")
        for loop in pieces.loops
    )
    joints = tuple(
        names.of_part(lower_part(*piece, edges, place, known, summed=False, circular="outside"))
        for piece in pieces.joints
        if piece
    )
    axes = tuple(axis for axis in STAGE_AXES if axis in plan.active_axes)
    loops = tuple(
        _PassLoops(
            IterationBuilder(chunk, loop.shape, axes, plan.numerics.compute),
            number,
            _bytes(loop.beside, joints[0]),
        )
        for number, (chunk, loop) in enumerate(zip(chunks, pieces.loops, strict=True))
    )
    weights, sums = _weights(plan.numerics, chunks, pieces.loops, joints)
    terms = GradientDeps({weight: alloc.tensor for weight, alloc in sums.items()}, {})
    frame = TrainingFrame(plan, inner, joints[0].sizes, place)
    reduced = replace(frame, sizes=chunks[0].sizes).reduced(weights, terms)
    gradients = _gradients((*(joint.gradients for joint in joints), reduced.gradients))
    between = iter(joints)
    placed = tuple(next(between) if piece else None for piece in pieces.joints)
    body = (
        *_passes(loops, placed, zeros(tuple(sums.values())), names),
        *_sums_of_uses(joints, plan.numerics.of("grad")),
        *reduced.ops,
        *frame.barrier(reduced.crossing),
    )
    cast = [cast_before(joint.partitioned, plan.numerics) for joint in joints]
    cast += [cast_before(chunk.partitioned, plan.numerics) for chunk in chunks]
    shards = frozenset().union(*cast)
    return Program(
        name=name,
        axes=tuple(plan.mesh.items()),
        body=(
            _input(joints, frame),
            *frame.around(
                body,
                weights,
                shards,
                gradients,
                frame.updates.clip(weights, gradients, axes),
                whole=frame.gathers(weights, shards),
            ),
        ),
        resident=frame.updates.resident(weights),
    )


def _input(joints: Sequence[LoweredPart], frame: TrainingFrame) -> Transfer:
    """Return the infeed of what the parts outside of the loops read."""
    first, *others = joints
    ops = tuple(op for joint in (first, *others) for op in joint.part.graph.ops)
    graph = replace(first.part.graph, ops=ops)
    return frame.infeed(graph, first.partitioned, 1)


def _bytes(tensors: Sequence[Tensor], joint: LoweredPart) -> Number:
    """Return one device's shard of tensors outside of the loops."""
    layouts, sizes = joint.partitioned.layouts, joint.sizes
    return sum(sizes.nbytes(LocalShape(t.dims, layouts[t.name]), t.dtype) for t in tensors)


def _weights(
    numerics: Numerics,
    chunks: Sequence[LoweredPart],
    loops: Sequence[CircularLoop],
    joints: Sequence[LoweredPart],
) -> tuple[tuple[StoredWeight, ...], dict[str, Alloc]]:
    """Return the weights of one device, of all its chunks, and the accumulators of the layers."""
    layers: dict[str, StoredWeight] = {}
    for chunk, loop in zip(chunks, loops, strict=True):
        for w in chunk.partitioned.weights:
            copies = layers[w.name].copies if w.name in layers else 0
            layers[w.name] = replace(w, copies=copies + w.copies * loop.shape.rounds)
    outer = {w.name: w for part in joints for w in part.partitioned.weights}
    held = {name for chunk in chunks for name in chunk.gradients.held}
    return (*outer.values(), *layers.values()), {
        w.name: accumulator(w, numerics, chunks[0].sizes) for w in layers.values() if w.name in held
    }


def _gradients(each: Sequence[GradientDeps]) -> GradientDeps:
    """Return the gradients of all weights after the loops."""
    held = {weight: tensor for found in each for weight, tensor in found.held.items()}
    after = {weight: op for found in each for weight, op in found.after.items()}
    apart = {weight: layers for found in each for weight, layers in found.apart.items()}
    return GradientDeps(held, after, apart)


def _passes(
    loops: Sequence["_PassLoops"],
    joints: Sequence[LoweredPart | None],
    cleared: Compute,
    names: OwnNames,
) -> Ops:
    """Return both passes: what stands before, between and after the loops, and the loops.

    The loss makes its gradients at once, so its part is where the passes meet.
    """
    forward, backward = (
        [joint.ops(kind) if joint else () for joint in joints]
        for kind in (PassKind.FORWARD, PassKind.BACKWARD)
    )
    turn = (*forward[-1], *backward[-1], cleared)
    around = [*forward[:-1], turn, *reversed(backward[:-1])]
    passes = [loop.passes(names) for loop in loops]
    inside = [*(ahead for ahead, _ in passes), *(back for _, back in reversed(passes))]
    held = [loop.held for loop in (*loops, *reversed(loops))]
    phases = [Phase.FORWARD if at < len(loops) else Phase.BACKWARD for at in range(len(around))]
    edges = [_with_anchor(ops, at, phases[at]) for at, ops in enumerate(around)]
    for place, (ops, state) in enumerate(zip(inside, held, strict=True)):
        if ops:
            edges[place], edges[place + 1] = _around(edges[place], edges[place + 1], state)
    rest = zip(inside, edges[1:], strict=True)
    return (*edges[0], *(op for ops, edge in rest for op in (*ops, *edge)))


class _PassLoops:
    """One loop in both passes.

    number: of the loop, counted from 0.
    beside: bytes of what waits beside it.
    held: its inputs, over which its results are written, and what waits beside it.
    """

    def __init__(self, iterations: IterationBuilder, number: int, beside: Number) -> None:
        self.iterations = iterations
        self.shape = iterations.shape
        self.number = number
        state = loop_state(self.shape, iterations.chunk)
        self.held = replace(state, bytes=state.bytes + beside)

    def passes(self, names: OwnNames) -> tuple[Ops, Ops]:
        """Return all iterations of the forward and of the backward pass, if it has one."""
        made = self.iterations
        forward = (*made.cleared(Phase.FORWARD), *self._loops(made.forward(), Phase.FORWARD))
        back = made.backward() if made.chunk.ops(PassKind.BACKWARD) else ()
        backward = (*made.cleared(Phase.BACKWARD), *self._loops(back, Phase.BACKWARD))
        own = names.of_ops((*forward, *(backward if back else ())), (self.held,), self.number)
        self.held = own.allocs[0]
        return own.ops[: len(forward)], own.ops[len(forward) :]

    def _loops(self, body: Ops, phase: Phase) -> Ops:
        """Return the iterations with results, and those that fill and drain the stages."""
        name, shape = loop_name(self.number, phase), self.shape
        needed = Loop(name=name, trips=shape.turns, body=map_ops(body, self._on_all_stages))
        idle = Loop(
            name=name + BUBBLE_SUFFIX, trips=shape.stages - 1, body=map_ops(body, self._unneeded)
        )
        return (needed, idle)

    def _on_all_stages(self, op: Op) -> Op:
        """Return an operation of one stage's devices, counted on those of all stages."""
        if not isinstance(op, Compute):
            return op
        f, n = op.flops, self.shape.stages
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
        flops = Flops(redundant=self.shape.stages * op.flops.total)
        return replace(op, name=name, deps=deps, flops=flops)


def _with_anchor(ops: Ops, number: int, phase: Phase) -> Ops:
    """Return the operations around loops; one that does nothing where no other can hold state."""
    if any(isinstance(op, Compute) for op in ops):
        return ops
    name = f"{PIPELINE} joint {number}"
    return (*ops, Compute(name=name, phase=phase, scope=name, work=VectorWork(0, 0, 0)))


def _around(before: Ops, after: Ops, state: Alloc) -> tuple[Ops, Ops]:
    """Return what stands around a loop, with `state` held from `before` to the start of `after`."""
    last = max(place for place, op in enumerate(before) if isinstance(op, Compute))
    first = next(place for place, op in enumerate(after) if isinstance(op, Compute))
    taker, giver = before[last], after[first]
    assert isinstance(taker, Compute)
    assert isinstance(giver, Compute)
    taker = replace(taker, allocs=(*taker.allocs, state))
    giver = replace(giver, frees=(*giver.frees, state.tensor))
    return (
        (*before[:last], taker, *before[last + 1 :]),
        (*after[:first], giver, *after[first + 1 :]),
    )


def _sums_of_uses(joints: Sequence[LoweredPart], dtype: str) -> Ops:
    """Return the sums of the gradients of weights that are read in several places."""
    uses: dict[str, list[LoweredPart]] = {}
    for joint in joints:
        for weight in joint.partitioned.weights:
            if weight.name in joint.gradients.held:
                uses.setdefault(weight.name, []).append(joint)
    return tuple(_sum_of_uses(name, parts, dtype) for name, parts in uses.items() if len(parts) > 1)


def _sum_of_uses(name: str, parts: Sequence[LoweredPart], dtype: str) -> Compute:
    """Return the sum of a weight's gradients, which is written over that of its last use."""
    held = next(w.updated for w in parts[-1].partitioned.weights if w.name == name)
    elements = parts[-1].sizes.elements(held)
    nbytes = elements * DTYPE_BYTES[dtype]
    return Compute(
        name=f"add/{name}",
        phase=Phase.BACKWARD,
        scope=name,
        deps=tuple(dep for part in parts for dep in part.gradients.deps(name)),
        work=VectorWork(len(parts) * nbytes, nbytes, (len(parts) - 1) * elements),
        frees=tuple(held for part in parts[:-1] for held in part.gradients.frees(name)),
    )
