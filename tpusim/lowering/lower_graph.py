"""Lowering of a whole step: a partitioned graph becomes the program of one device.

The sizes of the axes give every extent, the lowering decides how each collective runs, and the
order of the operations decides when each buffer lives.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from tpusim.base.phase import Phase
from tpusim.graph import Graph
from tpusim.lowering import optimizer
from tpusim.lowering.accumulate import GradientDeps, accumulate_microbatches
from tpusim.lowering.asked_place import AskedPlace
from tpusim.lowering.decisions import LoweringDecisions
from tpusim.lowering.late_reductions import reduce_once
from tpusim.lowering.lower_body import BodyLowerer
from tpusim.lowering.operand_dtypes import cast_before, check_dtypes
from tpusim.lowering.weight_gathers import gathers
from tpusim.partition import (
    LocalShape,
    PartitionedGraph,
    Sizes,
    StoredWeight,
    across_slices,
    buffers_of,
    loads,
)
from tpusim.plan import Plan
from tpusim.program import Barrier, Collective, Dep, Program, TopOp, Transfer, TransferKind


def lower(partitioned: PartitionedGraph, graph: Graph, plan: Plan, place: AskedPlace) -> Program:
    """Return the program of one device.

    Raise PlanError for a matmul in a dtype that the chip has no rate for.
    """
    check_dtypes(plan.dtypes, place.pod.chip)
    sizes = sizes_of(graph, plan)
    decisions = LoweringDecisions(partitioned, sizes, plan, place)
    lowerer = BodyLowerer(sizes, partitioned, decisions, plan)
    (body,), gradients = lowerer.passes()
    held = tuple(lowerer.left_over[0])
    if plan.microbatches > 1:
        body, gradients = accumulate_microbatches(
            body, gradients, partitioned.weights, plan, sizes, held
        )
        held = ()
    reduced = reduce_once(partitioned.weights, gradients, plan, sizes, place)
    gradients = reduced.gradients
    body = (*body, *reduced.ops, *barrier(plan, (*lowerer.crossing, *reduced.crossing)))
    shards = cast_before(partitioned, plan.dtypes)
    return Program(
        name=graph.name,
        axes=tuple(plan.mesh.items()),
        body=(
            batch_copy(graph, partitioned, plan, sizes),
            *with_optimizer(
                body,
                partitioned.weights,
                shards,
                plan,
                sizes,
                gradients,
                held,
                optimizer.clip(partitioned.weights, plan, sizes, gradients),
                gathers(partitioned.weights, shards, plan, sizes, place),
            ),
        ),
        resident=optimizer.resident(partitioned.weights, plan, sizes),
    )


def sizes_of(graph: Graph, plan: Plan) -> Sizes:
    """Return the sizes of the graph's dimensions and of the plan's axes."""
    chosen = loads(graph.sizes.get("expert", 0), plan.experts.skew, plan.experts.seed)
    capacity = buffers_of(plan.experts, graph.sizes)
    dtypes, tiles = plan.dtypes, plan.experts.tiles
    return Sizes(
        graph.sizes,
        plan.active_axes,
        dtypes.compute,
        dtypes.param,
        chosen,
        capacity,
        tiles,
        plan.attention_kernel,
    )


def barrier(plan: Plan, crossing: Sequence[str]) -> tuple[Barrier, ...]:
    """Return the wait of all slices for each other, once per step, when all gradients have crossed.

    Slices that are stages of one pipeline have none: their messages keep them in step, and their
    waits are simulated. The skew was fitted on slices that only share a batch.
    """
    axes = across_slices(tuple(plan.active_axes))
    deps = tuple(Dep(name) for name in crossing)
    return (Barrier(name="slices", phase=Phase.BACKWARD, axes=axes, deps=deps),) if axes else ()


def with_optimizer(
    body: tuple[TopOp, ...],
    weights: tuple[StoredWeight, ...],
    shards: Collection[str],
    plan: Plan,
    sizes: Sizes,
    gradients: GradientDeps,
    held: tuple[str, ...],
    clip: tuple[TopOp, ...],
    whole: tuple[Collective, ...] = (),
) -> tuple[TopOp, ...]:
    """Wrap a step: cast the weights before it; find the gradients' norm and update after it.

    shards: the weights of which the shards are cast.
    held: tensors that the backward pass holds to its end.
    clip: the operations that compute the norm.
    whole: the gathers of weights that are updated in parts.
    """
    cast = optimizer.cast(tuple(w for w in weights if w.name in shards), plan, sizes)
    copies = [cast.allocs[0].tensor] if cast else []
    freed = {tensor for op in whole for tensor in op.frees}
    copies += [a.tensor for op in whole for a in op.allocs if a.tensor not in freed]
    updates: list[optimizer.Update] = []
    for place, weight in enumerate(optimizer.trained(weights)):
        first, *rest = optimizer.update(weight, plan, sizes, gradients.held.get(weight.name, ""))
        frees = (*first.frees, *(() if place else (*held, *copies)))
        updates.append((replace(first, deps=gradients.deps(weight.name), frees=frees), *rest))
    moments = optimizer.moments(weights, plan, sizes) if plan.optimizer.offload else ()
    return (
        *((cast,) if cast else ()),
        *whole,
        *body,
        *clip,
        *optimizer.rates(weights, plan, sizes, gradients),
        *optimizer.streamed_updates(updates, moments),
    )


def batch_copy(graph: Graph, partitioned: PartitionedGraph, plan: Plan, sizes: Sizes) -> Transfer:
    """Return the infeed of the next step's batch: one device's part, of all microbatches.

    Devices that share a part are each sent it, as each has its own copy. (The gradient of the loss
    is an input of the backward pass, but a constant.)
    """
    part = sum(
        sizes.nbytes(LocalShape(tensor.dims, partitioned.layouts[tensor.name]), tensor.dtype)
        for tensor in graph.given
    )
    return Transfer(
        name="input",
        phase=Phase.FORWARD,
        kind=TransferKind.INPUT,
        scope="input",
        bytes=part * plan.microbatches,
        host_s=plan.input_s,
        after_step=plan.loop == "synchronous",
    )
