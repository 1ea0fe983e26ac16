"""A lower bound of the step time in closed form, for arrays of plans.

The bound knows the partitioned graph, in which all plans of a kind are the same operations and
collectives on other sizes, but no placement and no order of operations. It adds up what the core
cannot avoid: its operations, and the collectives that it waits for, each on all links that a group
of its size can have. A body also takes as long as its longest row of operations and transfers that
wait for each other. Where the lowering may decide one way or another, the lower counts.
"""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import PlanError
from tpusim.costs.program_costs import skew_seconds
from tpusim.exploration.bound_bodies import BodySeconds
from tpusim.exploration.bound_groups import GroupAnswers
from tpusim.exploration.bound_pipeline import LayerLoops, pipelined_seconds
from tpusim.exploration.plan_arrays import PlanArrays, distinct
from tpusim.graph import Gather, Graph, layer_row, walk
from tpusim.hardware import Slice
from tpusim.lowering import sizes_of
from tpusim.models import Architecture
from tpusim.partition import (
    PartitionedGraph,
    across_slices,
    body_nodes,
    partition_graph,
    resolve_rules,
)
from tpusim.pipeline.planned_step import forward_graph, planned_graph, planned_step
from tpusim.plan import STAGE_AXES, Axes, Plan, inner_plan, part_bounds
from tpusim.program import Number, largest
from tpusim.simulation.arguments import check_arguments

Floats = NDArray[np.float64]


class PlanBounds(NamedTuple):
    """Lower bounds of plans: seconds of the step, and bytes of the HBM peak.

    Both are infinite for a plan that is refused.
    """

    seconds: Floats
    hbm_bytes: Floats


@checked_call
def bound(model: Architecture | str, plan: Plan, pod: Slice | str) -> float:
    """Return seconds that no step of the plan is shorter than, whatever its placement.

    Raise PlanError for a plan that the model does not admit.
    """
    model, plan, pod = check_arguments(model, plan, pod, "bound")
    seconds = float(bounds(model, PlanArrays.of([(plan, pod)])).seconds[0])
    if np.isinf(seconds):
        planned_step(model, plan, pod)
    return seconds


def bounds(
    model: Architecture, plans: PlanArrays, answers: GroupAnswers | None = None
) -> PlanBounds:
    """Return lower bounds of many plans.

    answers: what earlier calls for the same slices found.
    """
    answers = answers or GroupAnswers(plans.pods)
    found = PlanBounds(np.full(len(plans), np.inf), np.full(len(plans), np.inf))
    steps: dict[Hashable, tuple[_KnownStep, list[NDArray[np.int64]]]] = {}
    shared = _BatchAxes(model, plans)
    extents = _Extents(model, plans.base)
    for some in _alike(model, plans, extents.of(plans)):
        members = some[shared.divide(some)]
        while len(members):
            try:
                step = _KnownStep.of(model, plans, int(members[0]))
            except PlanError:
                members = members[plans.differ(members, int(members[0]))]
                continue
            members = members[step.divides(plans.take(members))]
            steps.setdefault(step.key(plans, int(some[0])), (step, []))[1].append(members)
            break
    for step, parts in steps.values():
        members = np.concatenate(parts)
        if len(members):
            taken = plans.take(members)
            known = step.bounds(extents.of(taken), taken, answers)
            for array, values in zip(found, known, strict=True):
                array[members] = values
    return found


def _alike(
    model: Architecture, plans: PlanArrays, extents: Mapping[str, Number]
) -> Iterator[NDArray[np.int64]]:
    """Yield the indices of plans that have one partitioned graph and one chip.

    The graph depends on which axes are larger than one, and on which dimensions are smaller than
    the product of the axes that shard them; and on whether a device has fewer tokens to look up
    than a table has rows (`exchanged_tables`).

    extents: sizes of the graph's dimensions.
    """
    devices = {id(pod.chip): number for number, pod in enumerate(plans.pods)}
    chips = np.array([devices[id(pod.chip)] * 1000 + pod.num_slices for pod in plans.pods])
    columns = [chips[plans.pod], plans.microbatches > 1]
    columns += [sizes > 1 for sizes in plans.mesh.values()]
    columns.append(plans.stages)
    axes = [axis for axis in plans.mesh if axis not in STAGE_AXES]
    batch = plans.batch
    base = plans.base
    if base.vocab_tiles > 1 or base.context.exchanges_heads:
        columns += [batch, *plans.mesh.values()]
    products = {
        group: np.prod([plans.mesh[axis] for axis in group], axis=0)
        for count in range(1, len(axes) + 1)
        for group in combinations(axes, count)
    }
    sizes = {id(extent): extent for extent in extents.values()}
    single = sorted({int(e) for e in sizes.values() if not isinstance(e, np.ndarray)})
    for product in products.values():
        columns.append(np.searchsorted(single, product))
        columns += [product > e for e in sizes.values() if isinstance(e, np.ndarray)]
    looked_up = [
        op for op, _ in walk(_forward(model, base, int(batch[0])).ops) if isinstance(op, Gather)
    ]
    for op in looked_up:
        ids = np.prod([extents[dim] * np.ones(len(plans)) for dim in op.ids.dims], axis=0)
        columns += [ids // product < extents[op.dim] for product in products.values()]
    inverse = np.zeros(len(plans), np.int64)
    for column in columns:
        values, codes = distinct(np.asarray(column, np.int64))
        _, inverse = distinct(inverse * len(values) + codes)
    order = np.argsort(inverse, kind="stable")
    return iter(np.split(order, np.flatnonzero(np.diff(inverse[order])) + 1))


class _BatchAxes:
    """The axes that divide the batch of plans: the same for all whose axes above one are."""

    def __init__(self, model: Architecture, plans: PlanArrays) -> None:
        self.model, self.plans = model, plans
        self.known: dict[Axes, Axes] = {}

    def divide(self, some: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return True for plans, alike in their axes above one, whose batch can be divided."""
        plans = self.plans
        shards = plans.microbatches[some]
        for axis in self._axes(int(some[0])):
            shards = shards * plans.mesh[axis][some]
        fine: NDArray[np.bool_] = plans.global_batch[some] % shards == 0
        return fine

    def _axes(self, at: int) -> Axes:
        """Return the axes of the batch; none where a plan with any batch is refused."""
        active = tuple(axis for axis, sizes in self.plans.mesh.items() if sizes[at] > 1)
        if active not in self.known:
            count = prod(int(sizes[at]) for sizes in self.plans.mesh.values())
            batch = count * int(self.plans.microbatches[at])
            try:
                plan = inner_plan(self.plans.plan(at).replace(global_batch=batch))
                rules = resolve_rules(plan, planned_graph(self.model, plan))
            except PlanError:
                return ()
            self.known[active] = dict(rules.table)["act_batch"]
        return self.known[active]


class _Extents:
    """The sizes of the graph's dimensions: those of a batch are looked up once."""

    def __init__(self, model: Architecture, base: Plan) -> None:
        self.model, self.base = model, base
        self.known: dict[int, Mapping[str, int]] = {}

    def of(self, plans: PlanArrays) -> dict[str, Number]:
        """Return the sizes for some plans, arrays where they depend on the batch."""
        values, inverse = distinct(plans.batch)
        for value in set(values.tolist()) - self.known.keys():
            self.known[value] = _forward(self.model, self.base, value).sizes
        sizes = [self.known[value] for value in values.tolist()]
        found: dict[str, Number] = {}
        arrays: dict[tuple[int, ...], NDArray[np.float64]] = {}
        for dim in sizes[0]:
            each = tuple(size[dim] for size in sizes)
            if len(set(each)) == 1:
                found[dim] = each[0]
                continue
            if each not in arrays:
                arrays[each] = np.array(each, float)[inverse]
            found[dim] = arrays[each]
        return found


def _forward(model: Architecture, base: Plan, batch: int) -> Graph:
    plain = {"vocab_tiles": 1, "context_exchange": "gather"}
    mesh = dict.fromkeys(base.mesh, 1)
    return forward_graph(
        model, base.replace(mesh=mesh, global_batch=batch, microbatches=1, **plain)
    )


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
            loops = LayerLoops.of(layer_row(_forward(model, plan, plan.microbatch)))
            part_bounds(plan, loops.layers, model.name)
        return cls(plan, graph, partition_graph(graph, inner_plan(plan)), loops)

    def key(self, plans: PlanArrays, at: int) -> Hashable:
        """Return what is equal for plans that are bounded together: chip and partitioned graph."""
        pod, made, plan = plans.pods[plans.pod[at]], self.partitioned, self.plan
        sized = plan.vocab_tiles > 1 or plan.context.exchanges_heads
        return (
            pod.chip,
            pod.num_slices,
            plan.microbatches > 1,
            plan.active_schedule,
            tuple(plan.active_axes),
            (plan.microbatch, *plan.mesh.values()) if sized else (),
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
        rules = dict(resolve_rules(self.inner, self.graph).table)
        group = np.prod([np.ones(len(plans)), *(plans.mesh[a] for a in rules["act_batch"])], axis=0)
        fine: NDArray[np.bool_] = (plans.batch % group == 0) & (
            plans.global_batch % plans.microbatches == 0
        )
        return fine

    def bounds(
        self, extents: Mapping[str, Number], plans: PlanArrays, answers: GroupAnswers
    ) -> PlanBounds:
        """Return the bounds of each of the plans. extents: sizes of the graph's dimensions."""
        ones = np.ones(len(plans))
        with np.errstate(all="ignore"):
            seconds, held = self._bounds(extents, plans, answers)
        return PlanBounds(seconds * ones, held * ones)

    def _bounds(
        self, extents: Mapping[str, Number], plans: PlanArrays, answers: GroupAnswers
    ) -> tuple[Number, Number]:
        dims: dict[str, Any] = {**self.graph.sizes, **extents}
        axes = {axis: plans.mesh[axis].astype(float) for axis in self.inner.active_axes}
        sizes = replace(sizes_of(self.graph, self.inner), dims=dims, axes=axes, _extents={})
        made = BodySeconds(self.plan, self.inner, self.partitioned, sizes, plans, answers)
        parts = made.step_parts()
        if self.plan.active_schedule:
            held = (parts.layers_stored + parts.stacked) / plans.stages
            return pipelined_seconds(self.plan, plans, self.loops, parts), held
        m = plans.microbatches.astype(float)
        least = m * largest(parts.layers + parts.edges, parts.path) + parts.once
        core = m * (parts.layers_core + parts.edges) + parts.once
        skewed = least + _skew(self.inner, plans) * core
        return largest(skewed, m * parts.links), parts.stored + parts.stacked


def _skew(plan: Plan, plans: PlanArrays) -> float:
    """Return what slices wait for each other, as a share of the core's work."""
    pod = plans.pods[int(plans.pod[0])]
    return (
        skew_seconds(1.0, pod.num_slices, pod.chip)
        if across_slices(tuple(plan.active_axes))
        else 0.0
    )
