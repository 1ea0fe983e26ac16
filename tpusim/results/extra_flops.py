"""FLOPs that another sharding would save: repeated on several devices, or spent on padding."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from tpusim.base.phase import Phase
from tpusim.frames import choices_of, sizes_of
from tpusim.graph import Graph
from tpusim.lowering import flops_of, idle_axes
from tpusim.models import Architecture
from tpusim.partition import (
    CollectiveNode,
    ComputeNode,
    PartitionedGraph,
    ShardingRules,
    Sizes,
    body_nodes,
)
from tpusim.pipeline.planned_step import checked_rules, partitioned_graph, planned_graph
from tpusim.plan import Axes, Plan, inner_plan


class RepeatedWork(NamedTuple):
    """FLOPs that all devices of some axes repeat.

    share: of all matrix FLOPs of forward and backward pass.
    axes: that divide none of these operations.
    node: the operation with most of them.
    """

    share: float
    axes: Axes
    node: ComputeNode


class PaddedWork(NamedTuple):
    """FLOPs on the padding of a dimension that its axes do not divide.

    share: of all matrix FLOPs of forward and backward pass.
    padded: its size with padding.
    """

    share: float
    dim: str
    size: int
    axes: Axes
    padded: int


class _Cost(NamedTuple):
    """The FLOPs of all runs of an operation, and the axes that do not divide it."""

    node: ComputeNode
    idle: Axes
    total: float
    repeated: float
    padding: float


@dataclass(frozen=True)
class PartitionedStep:
    """A plan's forward and backward pass of one microbatch, as it is partitioned.

    Its properties raise PlanError for a plan that cannot be.
    """

    model: Architecture
    plan: Plan

    @cached_property
    def inner(self) -> Plan:
        """The plan of a stage; the plan itself where there is no pipeline."""
        return inner_plan(self.plan)

    @cached_property
    def graph(self) -> Graph:
        """The graph of one microbatch."""
        return planned_graph(self.model, self.plan)

    @cached_property
    def sizes(self) -> Sizes:
        """The sizes of dimensions and axes."""
        return sizes_of(self.graph, choices_of(self.inner))

    @cached_property
    def rules(self) -> ShardingRules:
        """The rules in force."""
        return checked_rules(self.inner, self.graph)

    @cached_property
    def partitioned(self) -> PartitionedGraph:
        """Operations and collectives, of all stages together where there is a pipeline."""
        return partitioned_graph(self.graph, self.inner)

    @cached_property
    def costs(self) -> tuple[_Cost, ...]:
        """The operations with matrix FLOPs."""
        sizes, found = self.sizes, []
        for node, times in body_nodes(self.partitioned.nodes):
            if isinstance(node, ComputeNode) and (flops := flops_of(node, sizes)).total:
                idle = idle_axes(node, sizes)
                total, copies = times * float(flops.total), float(sizes.group(idle))
                repeated = total * (1 - 1 / copies)
                found.append(_Cost(node, idle, total, repeated, times * float(flops.padding)))
        return tuple(found)

    @cached_property
    def total(self) -> float:
        """All FLOPs."""
        return float(sum(cost.total for cost in self.costs))

    def repeated(self, axes: Axes | None = None) -> float:
        """Return the FLOPs that devices repeat: all, or those that these axes do not divide."""
        return float(sum(c.repeated for c in self.costs if axes is None or c.idle == axes))

    def moved(self, *, unasked: bool = False) -> float:
        """Return the bytes of the tensors that collectives move: of all, or implicit ones alone."""
        sizes = self.sizes
        return float(
            sum(
                times * sizes.elements(node.payload) * sizes.itemsize(node.dtype)
                for node, times in body_nodes(self.partitioned.nodes)
                if isinstance(node, CollectiveNode) and not (unasked and node.asked)
            )
        )

    def repeated_work(self) -> Iterator[RepeatedWork]:
        """Yield repeated work by the axes that do not divide it, the most first."""
        groups: Counter[Axes] = Counter()
        for cost in self.costs:
            if cost.repeated:
                groups[cost.idle] += int(cost.repeated)
        for axes, flops in groups.most_common():
            yield RepeatedWork(flops / self.total, axes, self.largest(axes))

    def largest(self, axes: Axes) -> ComputeNode:
        """Return the operation that repeats most over some axes, of the forward pass if any."""
        own = [cost for cost in self.costs if cost.idle == axes]
        forward = [cost for cost in own if cost.node.phase is Phase.FORWARD]
        return max(forward or own, key=lambda cost: cost.repeated).node

    def padded_work(self) -> Iterator[PaddedWork]:
        """Yield work on padding by the dimension that is padded most, the most first."""
        groups: Counter[tuple[str, Axes]] = Counter()
        for cost in self.costs:
            if cost.padding:
                groups[max(cost.node.split, key=self._padding)] += int(cost.padding)
        for (dim, axes), flops in groups.most_common():
            padded = int(self.sizes.padded((dim,), {dim: axes}))
            yield PaddedWork(flops / self.total, dim, self.sizes.dims[dim], axes, padded)

    def _padding(self, divided: tuple[str, Axes]) -> float:
        """Return the size of a divided dimension with its padding, over that without."""
        dim, axes = divided
        return float(self.sizes.padded((dim,), {dim: axes})) / self.sizes.dims[dim]
