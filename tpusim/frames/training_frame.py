"""The frame of a training step: what stands around the passes of its microbatches.

Casts and gathers of weights before them, the accumulation of gradients, the reductions that wait
for the last microbatch, the norm of the gradients, the updates, the infeed, and the waits of slices
for each other.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

from tpusim.base.phase import Phase
from tpusim.frames.accumulate import accumulate_microbatches
from tpusim.frames.body_frame import CAST, cast_weights, infeed, sizes_of, stored_states
from tpusim.frames.layer_casts import freed_when_read
from tpusim.frames.optimizer import Update, Updates, streamed_updates, trained
from tpusim.frames.weight_gathers import gathers
from tpusim.graph import LOSS, Graph
from tpusim.hardware import Placement, Slice
from tpusim.lowering import (
    AskedPlace,
    BodyChoices,
    BodyLowerer,
    GradientDeps,
    LoweringDecisions,
    cast_before,
    check_dtypes,
)
from tpusim.partition import PartitionedGraph, Sizes, StoredWeight, across_slices, late_reductions
from tpusim.plan import Axes, Plan
from tpusim.program import Alloc, Barrier, Collective, Compute, Dep, Op, Program, TopOp, Transfer

VALUE_BYTES = 4.0
"""Bytes of the value of the loss, in f32."""

UNROLLED_MICROBATCHES = 2
"""The microbatches of a loop of which, across slices, no iteration is left."""


def choices_of(plan: Plan) -> BodyChoices:
    """Return what the lowering of the bodies of a plan's step reads, see `BodyChoices`."""
    return BodyChoices(
        plan.sharding,
        plan.numerics,
        plan.compiler,
        plan.remat,
        updated=tuple(plan.optimizer.axes),
        repeated=plan.microbatches > 1,
    )


def asked_place(pod: Slice, placement: Placement, choices: BodyChoices) -> AskedPlace:
    """Return a placement as the lowering of bodies asks about it."""
    return AskedPlace(pod, placement, choices.sharding.mesh, choices.compiler)


def updates_of(plan: Plan, sizes: Sizes) -> Updates:
    """Return the updates of the weights of a plan, on one device."""
    return Updates(plan.optimizer, plan.numerics, plan.finished_dtype, sizes, plan.stages > 1)


class Reduced(NamedTuple):
    """The operations that reduce gradients, the gradients, and those that cross slices."""

    ops: tuple[Op, ...]
    gradients: GradientDeps
    crossing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TrainingFrame:
    """What a training step has around the passes of its microbatches, on one device.

    plan: of the step.
    choices: of its bodies, which are those of a stage where there is a pipeline.
    sizes: of the weights, and of the batch that comes in.
    """

    plan: Plan
    choices: BodyChoices
    sizes: Sizes
    place: AskedPlace

    @classmethod
    def of(cls, graph: Graph, plan: Plan, place: AskedPlace) -> Self:
        """Return the frame of a step without a pipeline, whose microbatch is `graph`."""
        choices = choices_of(plan)
        return cls(plan, choices, sizes_of(graph, choices), place)

    @property
    def updates(self) -> Updates:
        """The updates of weights."""
        return updates_of(self.plan, self.sizes)

    def program(self, graph: Graph, partitioned: PartitionedGraph) -> Program:
        """Return the program of a step whose passes are one body.

        Raise PlanError for a matmul in a dtype that the chip has no rate for.
        """
        check_dtypes(self.plan.numerics, self.place.pod.chip)
        decisions = LoweringDecisions(partitioned, self.sizes, self.choices, self.place)
        lowerer = BodyLowerer(self.sizes, partitioned, decisions)
        (body,), gradients = lowerer.passes()
        if self.plan.microbatches > 1:
            body, gradients = accumulate_microbatches(
                body,
                gradients,
                partitioned.weights,
                self.plan.microbatches,
                self.plan.numerics,
                self.sizes,
                self.interleaves,
            )
        reduced = self.reduced(partitioned.weights, gradients)
        crossing = (*lowerer.crossing, *reduced.crossing)
        body = (*body, *reduced.ops, *self.barrier(crossing))
        shards = cast_before(partitioned, self.plan.numerics)
        clip = self.updates.clip(partitioned.weights, reduced.gradients)
        ops = self.around(
            body,
            partitioned.weights,
            shards,
            reduced.gradients,
            clip,
            self.gathers(partitioned.weights, shards),
        )
        cast = any(op.name == CAST for op in ops)
        if cast and self.plan.microbatches == 1 and not decisions.ideal:
            room = self.place.pod.chip.compiler_rules.on_chip_room
            ops = freed_when_read(ops, shards, partitioned, self.plan.numerics, self.sizes, room)
        if not decisions.ideal:
            ops = with_loss_value(ops, partitioned)
        return Program(
            name=graph.name,
            axes=tuple(self.plan.mesh.items()),
            body=(self.infeed(graph, partitioned, self.plan.microbatches), *ops),
            resident=(
                *self.updates.resident(partitioned.weights),
                *stored_states(partitioned.states, self.sizes),
            ),
        )

    @property
    def interleaves(self) -> bool:
        """True if two microbatches are under way at a time.

        Across slices the compiler takes the first iteration out of a loop, so that of two none is
        left, and both forward passes are scheduled before the first backward pass: 16 of 16 plans
        on v4, v5e, v5p and v6e, and none of 60 on one slice (libtpu 0.0.42.1).
        """
        ideal = self.choices.compiler.lowering == "ideal"
        across = across_slices(tuple(self.choices.sharding.active_axes))
        return bool(across) and self.plan.microbatches == UNROLLED_MICROBATCHES and not ideal

    def reduced(self, weights: Sequence[StoredWeight], sums: GradientDeps) -> Reduced:
        """Return the reductions of gradients that wait for the last microbatch; of others none.

        sums: the accumulators of the weights.
        """
        if not self.plan.reduces_once:
            return Reduced((), sums, ())
        return reduce_once(weights, sums, self.choices, self.sizes, self.place)

    def gathers(
        self, weights: Sequence[StoredWeight], shards: Collection[str]
    ) -> tuple[Collective, ...]:
        """Return the gathers of weights that are updated in parts, see `gathers`."""
        return gathers(weights, shards, self.choices, self.sizes, self.place)

    def barrier(self, crossing: Sequence[str]) -> tuple[Barrier, ...]:
        """Return the wait of all slices for each other, once per step, when gradients have crossed.

        Slices that are stages of one pipeline have none: their messages keep them in step, and
        their waits are simulated. The skew was fitted on slices that only share a batch.

        crossing: the operations that cross slices.
        """
        axes: Axes = across_slices(tuple(self.choices.sharding.active_axes))
        deps = tuple(Dep(name) for name in crossing)
        return (Barrier(name="slices", phase=Phase.BACKWARD, axes=axes, deps=deps),) if axes else ()

    def around(
        self,
        body: tuple[TopOp, ...],
        weights: tuple[StoredWeight, ...],
        shards: Collection[str],
        gradients: GradientDeps,
        clip: tuple[TopOp, ...],
        whole: tuple[Collective, ...] = (),
    ) -> tuple[TopOp, ...]:
        """Return a step: weights are cast before the body; the gradients' norm and updates follow.

        shards: the weights of which the shards are cast.
        clip: the operations that compute the norm.
        whole: the gathers of weights that are updated in parts.
        """
        updates = self.updates
        cast = cast_weights(
            tuple(w for w in weights if w.name in shards), self.plan.numerics, self.sizes
        )
        copies = [cast.allocs[0].tensor] if cast else []
        freed = {tensor for op in whole for tensor in op.frees}
        copies += [a.tensor for op in whole for a in op.allocs if a.tensor not in freed]
        made: list[Update] = []
        for place, weight in enumerate(trained(weights)):
            first, *rest = updates.update(weight, gradients.frees(weight.name))
            frees = (*first.frees, *(() if place else copies))
            made.append((replace(first, deps=gradients.deps(weight.name), frees=frees), *rest))
        moments = updates.moments(weights) if self.plan.optimizer.offload else ()
        return (
            *((cast,) if cast else ()),
            *whole,
            *body,
            *clip,
            *updates.rates(weights, gradients),
            *streamed_updates(made, moments),
        )

    def infeed(self, graph: Graph, partitioned: PartitionedGraph, microbatches: int) -> Transfer:
        """Return the infeed of the next step's batch: one device's part, of all microbatches."""
        return infeed(
            graph,
            partitioned,
            self.sizes,
            microbatches,
            host_s=self.plan.input_s,
            after_step=self.plan.loop == "synchronous",
        )


def with_loss_value(ops: Sequence[TopOp], partitioned: PartitionedGraph) -> tuple[TopOp, ...]:
    """Return a step whose loss leaves its value in HBM until the end.

    It takes next to nothing, but splits the gap that it is in: where no smaller one is left
    below, the gap above the logits (labels by index on v4 and v6e: five of the logits, not four;
    libtpu 0.0.42.1).
    """
    value = Alloc(f"{LOSS}/value", VALUE_BYTES, "activations")
    *_, last = (op for op in ops if isinstance(op, Compute))
    makers = {node.name for node in partitioned.nodes if LOSS in node.writes}

    def holding(op: TopOp) -> TopOp:
        if not isinstance(op, Compute) or (op.name not in makers and op is not last):
            return op
        allocs = (value,) if op.name in makers else ()
        frees = (value.tensor,) if op is last else ()
        return replace(op, allocs=(*op.allocs, *allocs), frees=(*op.frees, *frees))

    made = any(isinstance(op, Compute) and op.name in makers for op in ops)
    return tuple(map(holding, ops)) if made else tuple(ops)


def reduce_once(
    weights: Sequence[StoredWeight],
    sums: GradientDeps,
    choices: BodyChoices,
    sizes: Sizes,
    place: AskedPlace,
) -> Reduced:
    """Return the reductions of the sums that microbatches left as terms, once a step.

    They are a body of their own, of collectives alone, which the same passes lower as any other.

    sums: the accumulators of the weights.
    """
    dtype = choices.numerics.of("accumulator")
    made = late_reductions(weights, sums.held, dtype, sizes)
    kept: Any = {"grad": dtype, "accumulator": dtype}
    numerics = replace(choices.numerics, **kept)
    finished = choices._replace(numerics=numerics)
    decisions = LoweringDecisions(made.graph, made.sizes, finished, place)
    lowerer = BodyLowerer(made.sizes, made.graph, decisions)
    (body,), reduced = lowerer.passes(_written_by(sums))
    gradients = GradientDeps({**sums.held, **reduced.held}, {**sums.after, **reduced.after})
    return Reduced(body, gradients, tuple(lowerer.crossing))


def _written_by(sums: GradientDeps) -> Mapping[str, str]:
    """Return the operation that completes each accumulator, where it is not in program order."""
    return {key: sums.after.get(weight, "") for weight, key in sums.held.items()}
