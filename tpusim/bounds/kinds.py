"""Which of many plans have one partitioned graph, and which are refused, on arrays."""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import combinations
from math import prod

import numpy as np
from numpy.typing import NDArray

from tpusim.base.errors import PlanError
from tpusim.bounds.plan_arrays import PlanArrays, distinct, distinct_rows, split_by
from tpusim.graph import Gather, Graph, Pointwise, Scan, layer_count, walk
from tpusim.models import Architecture
from tpusim.partition import rule_prefixes
from tpusim.pipeline.planned_step import checked_rules, forward_graph, planned_graph
from tpusim.plan import STAGE_AXES, Axes, Plan, inner_plan, part_bounds
from tpusim.program import Number


def kinds_of(
    model: Architecture,
    plans: PlanArrays,
    extents: Mapping[str, Number],
    refused: Counter[str],
) -> Iterator[NDArray[np.int64]]:
    """Yield the indices of plans that have one partitioned graph.

    Left out are plans whose stages cannot share the layers of the model.

    extents: sizes of the graph's dimensions.
    refused: gets the sentence for stages of a model that cannot be cut.
    """
    fine = _with_layers_for_all(model, plans, refused)
    plans = plans.take(fine)
    if not len(plans):
        return iter(())
    extents = {
        dim: size[fine] if isinstance(size, np.ndarray) else size for dim, size in extents.items()
    }
    columns: list[NDArray[np.generic]] = [sizes > 1 for sizes in plans.mesh.values()]
    if sums_matter(plans.base):
        columns.append(plans.microbatches > 1)
    forward = forward_of(model, plans.base, int(plans.batch[0]))
    tiled, alone = plans.base.vocab_tiles > 1, follows_sizes(plans.base, forward)
    if alone:
        columns += [plans.batch, *plans.mesh.values()]
    columns += _layout_columns(plans, forward, extents)
    kinds = split_by(distinct_rows(columns)[1])
    if tiled and not alone:
        kinds = [part for some in kinds for part in _with_equal_tiles(model, plans, some, extents)]
    return (fine[some] for some in kinds)


def follows_sizes(plan: Plan, graph: Graph) -> bool:
    """Return True if each mesh and batch may have a partitioned graph of its own.

    graph: the forward pass.
    """
    by_sizes = plan.annotate or plan.optimizer.axes or _has_group_norms(graph)
    return plan.context.exchanges_heads or (plan.vocab_tiles > 1 and bool(by_sizes))


def _has_group_norms(graph: Graph) -> bool:
    return any(isinstance(op, Pointwise) and op.group for op, _ in walk(graph.ops))


def _with_equal_tiles(
    model: Architecture,
    plans: PlanArrays,
    some: NDArray[np.int64],
    extents: Mapping[str, Number],
) -> Iterator[NDArray[np.int64]]:
    """Yield those of some plans, alike in all else, whose loss is cut alike, as `loss_parts` does.

    Left out are plans whose tiles do not divide the tokens of a device.
    """
    first = int(some[0])
    plan = inner_plan(plans.plan(first)).replace(vocab_tiles=1)
    try:
        forward = forward_graph(model, plan)
        layout = checked_rules(plan, forward).layout(forward.loss)
    except PlanError:
        yield some
        return
    left, kind = np.full(len(some), plans.base.vocab_tiles), np.zeros(len(some), np.int64)
    for dim, axes in reversed(list(zip(forward.loss.dims, layout, strict=True))):
        size = np.broadcast_to(np.asarray(extents[dim], np.int64), len(plans))[some]
        shards = _product(plans, axes)[some] if axes else np.ones(len(some), np.int64)
        parts = np.gcd(left, np.where(size % shards, 1, size // shards))
        left, kind = left // parts, kind * (1 + plans.base.vocab_tiles) + parts
    for each in np.unique(kind[left == 1]):
        yield some[(left == 1) & (kind == each)]


def sums_matter(plan: Plan) -> bool:
    """Return True if more changes with several microbatches than that gradients are added up."""
    several = plan.replace(microbatches=2, global_batch=2)
    finished = {several.finished_dtype, several.replace(microbatches=1).finished_dtype}
    return several.reduces_once or len(finished) > 1


def _layout_columns(
    plans: PlanArrays, graph: Graph, extents: Mapping[str, Number]
) -> Iterator[NDArray[np.generic]]:
    """Yield what layouts depend on besides which axes are larger than one.

    Rules leave out axes for which a dimension is too small; whether a device has fewer tokens to
    look up than a table has rows, and whether all have fewer than twice as many, decides
    `row_moves`. Annotations, weights that are updated in parts and norms of groups may depend on
    more.
    """
    base = plans.base
    for dim, axes in rule_prefixes(base.sharding, base.compiler.style, graph):
        yield _product(plans, axes) > extents[dim]
    within = tuple(axis for axis in plans.mesh if axis not in STAGE_AXES)
    groups = [some for count in range(1, len(within) + 1) for some in combinations(within, count)]
    last = max((at for at, op in enumerate(graph.ops) if isinstance(op, Scan)), default=-1)
    for ops, tiles in ((graph.ops[: last + 1], 1), (graph.ops[last + 1 :], base.vocab_tiles)):
        for op in (op for op, _ in walk(ops) if isinstance(op, Gather)):
            ids = np.prod([extents[dim] * np.ones(len(plans)) for dim in op.ids.dims], axis=0)
            for axes in ((), *groups):
                yield ids // _product(plans, axes) // tiles < extents[op.dim]
            yield ids // tiles < 2 * extents[op.dim]
    if base.annotate or base.optimizer.axes or _has_group_norms(graph):
        sizes = {id(extent): extent for extent in extents.values()}
        single = sorted({int(e) for e in sizes.values() if not isinstance(e, np.ndarray)})
        for axes in groups:
            product = _product(plans, axes)
            yield np.searchsorted(single, product)
            yield from (product > e for e in sizes.values() if isinstance(e, np.ndarray))


def _product(plans: PlanArrays, axes: Axes) -> NDArray[np.int64]:
    found: NDArray[np.int64] = np.prod([plans.mesh[axis] for axis in axes], axis=0)
    return found


def _with_layers_for_all(
    model: Architecture, plans: PlanArrays, refused: Counter[str]
) -> NDArray[np.int64]:
    """Return the indices of plans whose stages, if they have any, can share the model's layers."""
    fine = plans.stages == 1
    piped = np.flatnonzero(~fine)
    if not len(piped):
        return np.arange(len(plans))
    first = plans.base.replace(mesh=dict.fromkeys(plans.mesh, 1))
    try:
        layers = layer_count(forward_of(model, first, int(plans.batch[0])))
    except PlanError as error:
        refused[str(error)] += len(piped)
        return np.flatnonzero(fine)
    sizes = {axis: plans.mesh[axis][piped] for axis in STAGE_AXES if axis in plans.mesh}
    firsts, index = distinct_rows(sizes.values())
    shares = [
        _shares(first, {axis: int(each[at]) for axis, each in sizes.items()}, layers)
        for at in firsts.tolist()
    ]
    fine[piped] = np.array(shares)[index]
    return np.flatnonzero(fine)


def _shares(base: Plan, stages: Mapping[str, int], layers: int) -> bool:
    plan = base.replace(mesh={**base.mesh, **stages})
    try:
        part_bounds(plan, layers, "")
    except PlanError:
        return False
    return True


class BatchAxes:
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
                rules = checked_rules(plan, planned_graph(self.model, plan))
            except PlanError:
                return ()
            self.known[active] = dict(rules.table)["act_batch"]
        return self.known[active]


class Extents:
    """The sizes of the graph's dimensions: those of a batch are looked up once."""

    def __init__(self, model: Architecture, base: Plan) -> None:
        self.model, self.base = model, base
        self.known: dict[int, Mapping[str, int]] = {}

    def of(self, plans: PlanArrays) -> dict[str, Number]:
        """Return the sizes for some plans, arrays where they depend on the batch."""
        values, inverse = distinct(plans.batch)
        for value in set(values.tolist()) - self.known.keys():
            self.known[value] = forward_of(self.model, self.base, value).sizes
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


def forward_of(model: Architecture, base: Plan, batch: int) -> Graph:
    """Return the forward pass of a batch as one device has it, without tiles or exchanges."""
    plain = {"vocab_tiles": 1, "context_exchange": "gather"}
    mesh = dict.fromkeys(base.mesh, 1)
    return forward_graph(
        model, base.replace(mesh=mesh, global_batch=batch, microbatches=1, **plain)
    )
