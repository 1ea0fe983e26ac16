"""What the bounds of collectives ask of the groups of devices of plans that share a graph."""

from collections.abc import Callable, Hashable
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from tpusim.bounds.footprints import ring_seconds_per_byte
from tpusim.bounds.groups import GroupAnswers, GroupTable, PlanGroups
from tpusim.bounds.habits import GroupHabits
from tpusim.bounds.plan_arrays import Floats, PlanArrays
from tpusim.frames import choices_of
from tpusim.hardware import Slice
from tpusim.lowering.op_work import collective_bytes
from tpusim.partition import DTYPE_BYTES, CollectiveNode, Purpose, Sizes
from tpusim.plan import CIRCULAR, Axes, Plan
from tpusim.program import CollectiveKind, Number

Groups: TypeAlias = NDArray[np.int64]
"""Devices of each plan's group."""

Choices: TypeAlias = NDArray[np.bool_] | bool
"""True or False for each plan, or for all."""

_Answer = TypeVar("_Answer", bound=Number)


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
        self._groups: dict[Axes, PlanGroups] = {}
        self._of: dict[int, PlanGroups] = {}
        self._tiled: dict[Axes, bool] = {}

    def group(self, axes: Axes) -> Groups:
        """Return the devices of each plan's group over some axes."""
        if axes not in self._groups:
            made = PlanGroups(self.plans, axes, self.answers)
            self._groups[axes] = self._of[id(made.devices)] = made
        return self._groups[axes].devices

    def tiled(self, axes: Axes) -> bool:
        """Return `weights_are_tiled` of a collective over some axes."""
        if axes not in self._tiled:
            self._tiled[axes] = choices_of(self.inner).tiles_weights(axes)
        return self._tiled[axes]

    def habit(self, group: Groups, tiled: bool, name: str) -> Number:
        """Return one of the habits of each plan's group, 1 or 0; one number if all are alike."""
        compiler, circular = self.inner.compiler, self.circular

        def habit(table: GroupTable, numbers: Groups) -> Number:
            habits, index = table.habits(compiler, tiled, circular, numbers)
            values = np.array([float(getattr(each, name)) for each in habits])
            return _one_if_alike(values[index])

        return self._known(group, (name, tiled), habit)

    def ring(self, group: Groups) -> Floats:
        """Return the least seconds of a ring in a matmul, for each byte of its tensor."""

        return self._known(
            group, "ring", lambda table, some: table.each("ring", ring_seconds_per_byte, some)
        )

    def across_slices(
        self,
        seconds: Callable[[Slice, int, CollectiveKind], float],
        kind: CollectiveKind,
        slices: Groups,
    ) -> Number:
        """Return some seconds of a collective across slices. seconds: of a slice and a group."""

        def answer(pod: Slice, devices: int) -> float:
            return seconds(pod, devices, kind)

        asked = seconds, kind
        return self._known(slices, asked, lambda table, some: table.each(asked, answer, some))

    def least(
        self,
        group: Groups,
        kind: CollectiveKind,
        tiled: bool,
        algorithms: Callable[[GroupHabits], tuple[str, ...]],
    ) -> Floats:
        """Return the least seconds of a collective over each plan's group, [`FIXED`..., plan].

        algorithms: that may carry it out where lowerings have these habits.
        """
        compiler, circular = self.inner.compiler, self.circular

        def least(table: GroupTable, numbers: Groups) -> Floats:
            habits, index = table.habits(compiler, tiled, circular, numbers)
            names = [tuple(sorted(algorithms(each))) for each in habits]
            found = np.zeros((3, len(numbers)))
            for some in set(names):
                own = np.flatnonzero(np.array([each == some for each in names])[index])
                ways = [table.least(kind, name)[:, numbers[own]] for name in some]
                found[:, own] = np.min(ways, axis=0)
            return found

        return self._known(group, ("least", kind, tiled, algorithms), least)

    def _known(
        self, group: Groups, question: Hashable, answer: Callable[[GroupTable, Groups], _Answer]
    ) -> _Answer:
        """Return `PlanGroups.known` of the groups that `group` returned."""
        return self._of[id(group)].known(question, answer)

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


def _one_if_alike(values: Floats) -> Number:
    """Return the one number that all values are, or the values."""
    first = float(values[0]) if len(values) else 0.0
    return first if (values == first).all() else values


def times(share: Number, value: Number) -> Number:
    """Return the product of two numbers, the first of which is often 0 or 1 for all plans."""
    if isinstance(share, float) and share in (0.0, 1.0):
        return value if share else 0.0
    return share * value


def for_any(chosen: Choices | Number) -> bool:
    """Return True if something holds, or is not 0, for any of the plans."""
    return bool(chosen.any() if isinstance(chosen, np.ndarray) else chosen)


def where(chosen: Choices, one: Number, other: Number) -> Number:
    """Return one number of each plan or another."""
    if isinstance(chosen, bool):
        return one if chosen else other
    found: NDArray[np.float64] = np.asarray(np.where(chosen, one, other), np.float64)
    return found
