"""What the bounds of collectives ask of the groups of devices of plans that share a graph."""

from collections.abc import Callable, Hashable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.exploration.bound_collectives import habits_of, ring_seconds_per_byte
from tpusim.exploration.bound_groups import DistinctGroups, GroupAnswers, Groups, SomeGroup
from tpusim.exploration.plan_arrays import PlanArrays
from tpusim.hardware import Slice
from tpusim.lowering.op_work import collective_bytes
from tpusim.partition import DTYPE_BYTES, CollectiveNode, Purpose, Sizes
from tpusim.plan import CIRCULAR, Axes, Plan
from tpusim.program import CollectiveKind, Number

Choices: TypeAlias = NDArray[np.bool_]
"""True or False for each plan."""


class GroupQuestions:
    """The groups of plans that share a partitioned graph, and what their lowerings do for certain.

    circular: the plans are circular pipelines.
    best: their collectives run by the algorithm that is fastest.
    """

    def __init__(
        self, plan: Plan, inner: Plan, sizes: Sizes, plans: PlanArrays, answers: GroupAnswers
    ) -> None:
        self.inner, self.sizes, self.plans, self.answers = inner, sizes, plans, answers
        self.pods = plans.pods
        self.circular = plan.active_schedule == CIRCULAR
        self.best = inner.compiler.collectives == "best"
        self._groups: dict[Axes, Groups] = {}
        self._distinct: dict[int, DistinctGroups] = {}

    def group(self, axes: Axes) -> Groups:
        """Return the devices of each plan's group over some axes."""
        if axes not in self._groups:
            made = DistinctGroups(self.plans, axes, self.answers)
            self._groups[axes] = made.devices
            self._distinct[id(made.devices)] = made
        return self._groups[axes]

    def habit(self, group: Groups, tiled: bool, name: str) -> Number:
        """Return one of the habits of each plan's group, 1 or 0."""
        compiler, circular = self.inner.compiler, self.circular

        def habit(some: SomeGroup) -> float:
            habits = habits_of(some.pod, compiler, tiled, some.devices, circular, some.lie)
            return float(getattr(habits, name))

        return self.each((name, compiler, tiled, circular), habit, group)

    def ring(self, group: Groups) -> Number:
        """Return the least seconds of a ring in a matmul, for each byte of its tensor."""
        return self.each("ring", lambda some: ring_seconds_per_byte(some.pod, some.devices), group)

    def across_slices(
        self,
        seconds: Callable[[Slice, int, CollectiveKind], float],
        kind: CollectiveKind,
        slices: Groups,
    ) -> Number:
        """Return some seconds of a collective across slices. seconds: of a slice and a group."""
        return self.each(
            (seconds, kind), lambda some: seconds(some.pod, some.devices, kind), slices
        )

    def each(
        self, question: Hashable, answer: Callable[[SomeGroup], Any], group: Groups
    ) -> NDArray[np.float64]:
        """Return `DistinctGroups.each` of the groups that `group` returned."""
        return self._distinct[id(group)].each(question, answer)

    def bytes(self, node: CollectiveNode) -> Number:
        """Return the bytes of a collective in the narrowest dtype in which it may travel."""
        dtypes = self.inner.dtypes
        item = self.sizes.itemsize(node.dtype)
        least = item
        if node.purpose is Purpose.WEIGHT:
            least = min(item, DTYPE_BYTES[dtypes.of("gather")])
        elif node.purpose is Purpose.GRADIENT:
            least = min(item, DTYPE_BYTES[dtypes.of("reduce")])
        if dtypes.gathers_quantised:
            least = min(least, 1.0)
        return collective_bytes(node, self.sizes) * (least / item)


def where(chosen: Choices | bool, one: Number, other: Number) -> Number:
    """Return one number of each plan or another."""
    found: NDArray[np.float64] = np.asarray(np.where(chosen, one, other), np.float64)
    return found
