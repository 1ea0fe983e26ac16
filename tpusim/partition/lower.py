"""The second half of partitioning: a structure becomes the program of one device.

The sizes of the axes give every extent, the lowering decides how each collective runs, and the
order of the operations decides when each buffer lives.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from tpusim.graph import Graph
from tpusim.hardware import Placement, Slice
from tpusim.partition import optimizer
from tpusim.partition.accumulate import Gradients, accumulated
from tpusim.partition.bodies import Lowerer
from tpusim.partition.decisions import Decisions
from tpusim.partition.experts import buffers_of, loads
from tpusim.partition.feed import batch_copy
from tpusim.partition.layout import across
from tpusim.partition.plan import Plan
from tpusim.partition.quantise import check_dtypes
from tpusim.partition.sizes import Sizes
from tpusim.partition.template import Template, Weight
from tpusim.partition.travel import cast_before
from tpusim.phase import Phase
from tpusim.program import Barrier, Dep, Program, TopOp


def lower(
    template: Template, graph: Graph, plan: Plan, pod: Slice, placement: Placement
) -> Program:
    """The program of one device of `pod`, whose mesh lies on the torus as `placement` says.

    Raises PlanError for a matmul in a dtype that the chip has no rate for.
    """
    check_dtypes(plan, pod.chip)
    sizes = sizes_of(graph, plan)
    decisions = Decisions(template, sizes, plan, pod, placement)
    lowerer = Lowerer(sizes, template, decisions, plan)
    (body,), gradients = lowerer.passes()
    held = tuple(lowerer.left_over[0])
    if plan.microbatches > 1:
        body, gradients = accumulated(body, gradients, template.weights, plan, sizes, held)
        held = ()
    body = (*body, *barrier(plan, lowerer.crossing))
    return Program(
        name=graph.name,
        axes=tuple(plan.mesh.items()),
        body=(
            batch_copy(graph, template, plan, sizes),
            *with_optimizer(
                body, template.weights, cast_before(template, plan), plan, sizes, gradients, held,
                optimizer.clip(template.weights, plan, sizes, gradients),
            ),
        ),
        resident=optimizer.resident(template.weights, plan, sizes),
    )  # fmt: skip


def sizes_of(graph: Graph, plan: Plan) -> Sizes:
    """The sizes of the graph's dimensions and of the plan's axes."""
    chosen = loads(graph.sizes.get("expert", 0), plan.expert_skew, plan.seed)
    room = buffers_of(plan, graph.sizes)
    return Sizes(graph.sizes, plan.active_axes, plan.dtype, plan.param_dtype, chosen, room)


def barrier(plan: Plan, crossing: Sequence[str]) -> tuple[Barrier, ...]:
    """The slices wait for each other once a step, when all gradients have crossed.

    Those that are stages of one pipeline do not: their messages keep them in step all through it,
    and what they wait for is simulated. The skew was fitted on slices that share a batch alone.
    """
    axes = across(tuple(plan.active_axes))
    deps = tuple(Dep(name) for name in crossing)
    return (Barrier(name="slices", phase=Phase.BACKWARD, axes=axes, deps=deps),) if axes else ()


def with_optimizer(
    body: tuple[TopOp, ...], weights: tuple[Weight, ...], shards: Collection[str], plan: Plan,
    sizes: Sizes, gradients: Gradients, held: tuple[str, ...], clip: tuple[TopOp, ...],
) -> tuple[TopOp, ...]:  # fmt: skip
    """Cast the weights, run forward and backward, find the gradients' norm, update the weights.

    shards: the weights of which the shards are cast. held: tensors that the backward pass holds to
    its end. clip: what finds the norm.
    """
    cast = optimizer.cast(tuple(w for w in weights if w.name in shards), plan, sizes)
    updates = [
        replace(
            optimizer.update(weight, plan, sizes, gradients.held.get(weight.name, "")),
            deps=gradients.deps(weight.name),
        )
        for weight in weights
    ]
    copies = (cast.allocs[0].tensor,) if cast else ()
    updates[0] = replace(updates[0], frees=(*updates[0].frees, *held, *copies))
    moments = optimizer.moments(weights, plan, sizes) if plan.offload_optimizer else ()
    return (*((cast,) if cast else ()), *body, *clip, *optimizer.streamed(updates, moments))
