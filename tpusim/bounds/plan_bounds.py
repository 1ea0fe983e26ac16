"""A lower bound of the step time in closed form, for arrays of plans.

The bound knows the partitioned graph, in which all plans of a kind are the same operations and
collectives on other sizes, but no placement and no order of operations. It adds up what the core
cannot avoid: its operations, and the collectives that it waits for, each on all links that a group
of its size can have. A body also takes as long as its longest row of operations and transfers that
wait for each other. Where the lowering may decide one way or another, the lower counts.
"""

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import PlanError
from tpusim.bounds.bodies import BodySeconds, StepParts
from tpusim.bounds.groups import GroupAnswers
from tpusim.bounds.kinds import (
    BatchAxes,
    Extents,
    follows_sizes,
    forward_of,
    kinds_of,
    sums_matter,
)
from tpusim.bounds.pipeline import LayerLoops, pipelined_seconds
from tpusim.bounds.plan_arrays import Floats, PlanArrays, split_by
from tpusim.costs.program_costs import skew_seconds
from tpusim.frames import choices_of, sizes_of
from tpusim.graph import Graph, layer_row, whole_dim
from tpusim.hardware import Slice
from tpusim.models import Architecture
from tpusim.partition import (
    PartitionedGraph,
    across_slices,
    body_nodes,
)
from tpusim.pipeline.planned_step import (
    checked_rules,
    partitioned_graph,
    planned_graph,
    planned_step,
)
from tpusim.plan import Plan, inner_plan, part_bounds
from tpusim.program import Number, largest
from tpusim.simulation.arguments import check_arguments


class PlanBounds(NamedTuple):
    """Lower bounds of plans: seconds of the step, and bytes of the HBM peak.

    Both are infinite for a plan that is refused.
    """

    seconds: Floats
    hbm_bytes: Floats


@checked_call
def bound(model: Architecture | str, plan: Plan, pod: Slice | str) -> float:
    """Return a lower bound of the plan's step time in seconds, over all placements.

    Raise PlanError for a plan that the model does not admit.
    """
    model, plan, pod = check_arguments(model, plan, pod, "bound")
    seconds = float(bounds(model, PlanArrays.of([(plan, pod)])).seconds[0])
    if np.isinf(seconds):
        planned_step(model, plan, pod)
    return seconds


def bounds(
    model: Architecture,
    plans: PlanArrays,
    answers: GroupAnswers | None = None,
    refused: Counter[str] | None = None,
) -> PlanBounds:
    """Return lower bounds of many plans.

    answers: what earlier calls for the same slices found.
    refused: gets the sentences with which plans are refused, and how many are with each; not those
        whose sizes do not divide.
    """
    answers = answers or GroupAnswers(plans.pods)
    refused = Counter() if refused is None else refused
    found = PlanBounds(np.full(len(plans), np.inf), np.full(len(plans), np.inf))
    steps: dict[Hashable, tuple[_KnownStep, list[NDArray[np.int64]]]] = {}
    shared = BatchAxes(model, plans)
    extents = Extents(model, plans.base)
    try:
        kinds = kinds_of(model, plans, extents.of(plans), refused)
    except PlanError as error:
        refused[str(error)] += len(plans)
        return found
    for some in kinds:
        members = some[shared.divide(some)]
        while len(members):
            try:
                step = _KnownStep.of(model, plans, int(members[0]))
            except PlanError as error:
                others = members[plans.differ(members, int(members[0]))]
                refused[str(error)] += len(members) - len(others)
                members = others
                continue
            members = members[step.divides(plans.take(members))]
            steps.setdefault(step.form, (step, []))[1].append(members)
            break
    for step, parts in steps.values():
        members = np.concatenate(parts)
        for own in split_by(plans.machine[members]):
            known = step.bounds(extents, plans.take(members[own]), answers)
            for array, values in zip(found, known, strict=True):
                array[members[own]] = values
    return found


class _KnownStep(NamedTuple):
    """The partitioned graph that plans share.

    loops: over layers, of a pipeline alone.
    """

    plan: Plan
    graph: Graph
    partitioned: PartitionedGraph
    loops: LayerLoops

    @classmethod
    def of(cls, model: Architecture, plans: PlanArrays, at: int) -> "_KnownStep":
        plan = plans.plan(at)
        plan.check_together()
        graph = planned_graph(model, plan)
        loops = LayerLoops((), (), ())
        if plan.active_schedule:
            loops = LayerLoops.of(layer_row(forward_of(model, plan, plan.microbatch)))
            part_bounds(plan, loops.layers, model.name)
        return cls(plan, graph, partitioned_graph(graph, inner_plan(plan)), loops)

    @property
    def form(self) -> Hashable:
        """What is equal for plans that are bounded together on each chip."""
        made, plan = self.partitioned, self.plan
        sized = follows_sizes(plan, self.graph)
        return (
            plan.microbatches > 1 and sums_matter(plan),
            plan.active_schedule,
            tuple(plan.active_axes),
            (plan.microbatch, *plan.mesh.values()) if sized else (),
            plan.vocab_tiles > 1 and tuple(self.graph.sizes),
            tuple(sorted(made.layouts.items())),
            made.weights,
            tuple(
                (node.name, getattr(node, "axes", ()), getattr(node, "split", ()))
                for node, _ in body_nodes(made.nodes)
            ),
        )

    @property
    def inner(self) -> Plan:
        """The plan of a stage, or of the whole step."""
        return inner_plan(self.plan)

    def divides(self, plans: PlanArrays) -> NDArray[np.bool_]:
        """Return True for plans whose axes divide their batch, and their parts the layers."""
        rules = dict(checked_rules(self.inner, self.graph).table)
        group = np.prod([np.ones(len(plans)), *(plans.mesh[a] for a in rules["act_batch"])], axis=0)
        fine: NDArray[np.bool_] = (plans.batch % group == 0) & (
            plans.global_batch % plans.microbatches == 0
        )
        return fine

    def bounds(self, extents: Extents, plans: PlanArrays, answers: GroupAnswers) -> PlanBounds:
        """Return the bounds of each of the plans."""
        some, number = plans.alike()
        distinct = plans.take(some)
        with np.errstate(all="ignore"):
            parts = self._parts(extents.of(distinct), distinct, answers).take(number)
            seconds, held = self._bounds(parts, plans)
        ones = np.ones(len(plans))
        return PlanBounds(seconds * ones, held * ones)

    def _parts(
        self, extents: Mapping[str, Number], plans: PlanArrays, answers: GroupAnswers
    ) -> StepParts:
        known = self.graph.sizes
        dims: dict[str, Any] = {**known, **extents}
        for dim in known.keys() - extents.keys():  # tiles of the loss, as parts of a whole
            if (whole := whole_dim(dim)) in extents:
                dims[dim] = extents[whole] / (known[whole] // known[dim])
        axes = {axis: plans.mesh[axis].astype(float) for axis in self.inner.active_axes}
        sizes = replace(sizes_of(self.graph, choices_of(self.inner)), dims=dims, axes=axes)
        given = self.plan, self.inner, self.partitioned, sizes, plans, answers
        return BodySeconds(*given, self.loops.stacked(self.plan, plans)).step_parts()

    def _bounds(self, parts: StepParts, plans: PlanArrays) -> tuple[Number, Number]:
        if self.plan.active_schedule:
            held = (parts.stored + parts.stacked) / plans.stages
            return pipelined_seconds(self.plan, plans, self.loops, parts), held
        m = plans.microbatches.astype(float)
        least = m * largest(parts.layers + parts.edges, parts.path) + parts.once
        core = m * (parts.layers_core + parts.edges) + parts.once
        pod = plans.pods[int(plans.pod[0])]
        across = bool(across_slices(tuple(self.inner.active_axes)))
        skewed = least + across * skew_seconds(1.0, pod.num_slices, pod.chip) * core
        return largest(skewed, m * parts.links), parts.stored + parts.stacked
