"""Partitioning: a graph and its rules become a partitioned graph, once for all mesh sizes."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from tpusim.graph import Graph, ModelPart
from tpusim.partition.asked_sizes import AskedSizes, SizeAnswers
from tpusim.partition.context import kernel_residuals
from tpusim.partition.insert_collectives import emit
from tpusim.partition.layout import Layout
from tpusim.partition.lookups import RowMoves, row_moves
from tpusim.partition.norm_groups import NormGroups, norm_groups
from tpusim.partition.partitioned_graph import LoopNode, Node, PartitionedGraph
from tpusim.partition.propagate import layouts
from tpusim.partition.rules import ShardingRules
from tpusim.partition.update_layouts import WeightUpdates, update_layouts
from tpusim.plan import Sharding

NO_UPDATES = WeightUpdates()
"""Those of a graph without gradients."""

MOST_ALIKE = 16
"""Partitioned graphs of one structure that are kept."""


def partition_graph(
    graph: Graph, sharding: Sharding, rules: ShardingRules, updates: WeightUpdates = NO_UPDATES
) -> PartitionedGraph:
    """Return the partitioned graph of a forward pass, or of a training step.

    rules: those in force for the graph, see `resolve_rules`.

    It is the same for all plans whose rules give the same layouts: only which axes are larger than
    one matters, and which dimensions are too small for theirs. Raise PlanError for a plan that the
    graph does not admit.
    """
    found = layouts(graph, sharding, rules)
    moves = row_moves(graph, sharding, rules.style, found, updates.late)
    divided = update_layouts(graph, sharding, updates.axes, found)
    layouts_of = tuple(sorted(found.items()))
    groups = norm_groups(graph, sharding, found)
    kept = tuple(kernel_residuals(graph, sharding, found))
    made = _emitted(graph, layouts_of, (), moves, updates.late, divided, groups, kept)
    return replace(made, axes=tuple(sharding.active_axes), dropped=rules.dropped)


def partition_parts(
    graph: Graph,
    sharding: Sharding,
    rules: ShardingRules,
    updates: WeightUpdates,
    parts: Sequence[ModelPart],
) -> list[PartitionedGraph]:
    """Return the partitioned graph of each part of the model whose training step is `graph`.

    Their tensors have the layouts of the whole model. Raise PlanError as `partition_graph` does.
    """
    whole = layouts(graph, sharding, rules)
    moves = row_moves(graph, sharding, rules.style, whole, updates.late)
    divided = dict(update_layouts(graph, sharding, updates.axes, whole))
    groups = norm_groups(graph, sharding, whole)
    made: dict[int, PartitionedGraph] = {}
    for part in {id(part): part for part in parts}.values():
        own = {name: whole[like] for name, like in part.origin if like in whole}
        found = tuple(sorted((whole | own).items()))
        names = {name: like for name, like in part.origin if like in divided}
        own_updates = tuple((divided | {n: divided[like] for n, like in names.items()}).items())
        late = updates.late
        kept = tuple(kernel_residuals(part.graph, sharding, dict(found)))
        given = moves, late, own_updates, groups, kept
        partitioned = _emitted(part.graph, found, part.passes, *given)
        axes = tuple(sharding.active_axes)
        made[id(part)] = replace(partitioned, axes=axes, dropped=rules.dropped)
    return [made[id(part)] for part in parts]


def _emitted(graph: Graph, *given: Any) -> PartitionedGraph:
    """Return the partitioned graph, one for all graphs that it is the same for; see `emit`."""
    sizes = AskedSizes(graph.sizes)
    structure = replace(graph, dims=())
    known = _known(structure, *given)
    for answers, partitioned in tuple(known):
        if sizes.answers_as(answers):
            return partitioned
    partitioned = _new(structure, sizes, *given)
    known[:] = [(sizes.answers, partitioned), *known[: MOST_ALIKE - 1]]
    return partitioned


@lru_cache(maxsize=64)
def _known(structure: Graph, *given: Any) -> list[tuple[SizeAnswers, PartitionedGraph]]:
    """Return the partitioned graphs of a structure so far, with what they depend on."""
    return []


def _new(
    graph: Graph,
    sizes: AskedSizes,
    found: tuple[tuple[str, Layout], ...],
    passes: tuple[int, ...],
    moves: RowMoves,
    late: bool,
    updates: tuple[tuple[str, Layout], ...],
    groups: NormGroups,
    kept: tuple[tuple[str, Layout], ...],
) -> PartitionedGraph:
    given = moves, late, dict(updates), groups, dict(kept)
    partitioned = emit(graph, sizes, dict(found), passes, *given)
    nodes = (
        _shared(node) if passes and isinstance(node, LoopNode) else node
        for node in partitioned.nodes
    )
    return replace(partitioned, nodes=tuple(nodes))


def _shared(loop_node: LoopNode) -> LoopNode:
    """Return the loop with a body that all parts of a model with the same layers share."""
    carries = tuple(
        (before, before, after, after) for _, before, after, _ in loop_node.scan.carries
    )
    scan = replace(loop_node.scan, trips=1, carries=carries)
    return replace(loop_node, body=_body_of(replace(loop_node, scan=scan, reads=(), writes=())))


@lru_cache(maxsize=256)
def _body_of(loop_node: LoopNode) -> tuple[Node, ...]:
    return loop_node.body
