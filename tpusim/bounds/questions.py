"""What the bounds of collectives ask of the groups of devices of plans that share a graph."""

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from tpusim.bounds.footprints import MOST_DIMENSIONS, Footprints, ring_seconds_per_byte
from tpusim.bounds.groups import GroupAnswers, GroupTable, Reach
from tpusim.bounds.plan_arrays import Floats, PlanArrays, Whole, distinct_rows
from tpusim.costs.collective import BEST_ALGORITHM
from tpusim.frames import choices_of
from tpusim.hardware import Slice
from tpusim.lowering.collective_choice import CollectiveChoice
from tpusim.lowering.collective_lowering import Lowering
from tpusim.lowering.op_work import collective_bytes
from tpusim.lowering.operand_dtypes import reduced_dtype
from tpusim.partition import (
    DTYPE_BYTES,
    CollectiveNode,
    Purpose,
    Sizes,
    is_across,
    within_slice,
)
from tpusim.plan import CIRCULAR, Axes, Plan
from tpusim.program import CollectiveKind, Number

Choices: TypeAlias = NDArray[np.bool_] | bool
"""True or False for each plan, or for all."""

SIZES = 1 + MOST_DIMENSIONS
"""Columns of `PlanArrays.footprints` that are sizes; strides follow."""

_Answer = TypeVar("_Answer")


class GroupQuestions:
    """The groups of plans that share a partitioned graph.

    circular: the plans are circular pipelines.
    """

    def __init__(
        self, plan: Plan, inner: Plan, sizes: Sizes, plans: PlanArrays, answers: GroupAnswers
    ) -> None:
        self.inner, self.sizes, self.plans, self.answers = inner, sizes, plans, answers
        self.compiler, self.dtypes = inner.compiler, inner.dtypes
        self.circular = plan.active_schedule == CIRCULAR
        self._groups: dict[tuple[Axes, bool], PlanGroups] = {}

    def group(self, axes: Axes, of_experts: bool = False) -> "PlanGroups":
        """Return the groups of collectives over some axes: within a slice where there are any.

        of_experts: those of the weights of experts, see `LoweringDecisions.alone`.
        """
        key = axes, of_experts
        if key not in self._groups:
            self._groups[key] = PlanGroups(self, axes, of_experts)
        return self._groups[key]

    def bytes(self, node: CollectiveNode) -> Number:
        """Return the bytes of a collective in the narrowest dtype in which it may travel."""
        dtypes, item = self.dtypes, self.sizes.itemsize(node.dtype)
        least = item
        if node.purpose is Purpose.GRADIENT:
            least = self.sizes.itemsize(reduced_dtype(node, dtypes))
        elif node.purpose is Purpose.WEIGHT:
            least = min(item, DTYPE_BYTES[dtypes.of("gather")])
        if dtypes.gathers_quantised and node.purpose is not Purpose.GRADIENT:
            least = min(least, 1.0)
        return collective_bytes(node, self.sizes) * (least / item)


class PlanGroups:
    """The groups of collectives over some axes, one of each plan.

    within: the axes within a slice.
    devices: of each plan's group within a slice, or of all slices if it is of slices alone.
    """

    def __init__(self, ask: GroupQuestions, axes: Axes, of_experts: bool) -> None:
        self._ask, self.within = ask, within_slice(axes)
        self._reach = Reach.ACROSS if is_across(axes) else Reach.WITHIN
        self._axes = self.within or axes
        tiled = bool(self.within) and choices_of(ask.inner).tiles_weights(axes)
        self._either = tuple(sorted({False, tiled}))
        self._tiled = self._either if of_experts else (tiled,)
        ones = np.ones(len(ask.plans), np.int64)
        self.devices: Whole = np.prod([ones, *(ask.plans.mesh[a] for a in self._axes)], axis=0)
        self._known: dict[Hashable, Any] = {}

    def every(
        self, holds: Callable[..., bool], *about: Hashable, reach: Reach | None = None
    ) -> Number:
        """Return 1 where `holds(*about, low)` for each lowering that a group may have, else 0.

        One number if all plans are alike. `reach` may be `JOINED`, of rings over all slices.
        """

        def each(table: GroupTable, numbers: Whole) -> Number:
            sets, index = self._lowerings(reach or self._reach)
            values = np.array([float(all(holds(*about, low) for low in lows)) for lows in sets])
            return _one_if_alike(values[index[numbers]])

        return self._once((holds, reach, *about), each)

    def waits(self, choice: CollectiveChoice) -> Number:
        """Return 1 where the core waits for a collective in any lowering of its group, else 0."""
        return self.every(CollectiveChoice.waits, choice)

    def least(self, choice: CollectiveChoice) -> Floats:
        """Return the least seconds of a collective over each plan's group, [`FIXED`..., plan].

        They are those of any way in which a lowering of the group may carry it out.
        """

        return self._once(("least", choice), lambda table, numbers: self._least(choice))

    def _least(self, choice: CollectiveChoice) -> Floats:
        sets, index = self._lowerings(self._reach)
        names = tuple(self._algorithms(choice, lows) for lows in sets)

        def least(table: GroupTable, numbers: Whole) -> Floats:
            found, own = np.zeros((3, len(numbers))), index[numbers]
            for some in {names[at] for at in np.unique(own).tolist()}:
                among = np.flatnonzero(np.array([each == some for each in names])[own])
                ways = [table.least(choice.kind, name)[:, numbers[among]] for name in some]
                found[:, among] = np.min(ways, axis=0)
            return found

        return self._once((choice.kind, names), least)

    def least_by(self, kind: CollectiveKind, algorithm: str) -> Floats:
        """Return the least seconds of a collective by one algorithm, [`FIXED`..., plan]."""

        def least(table: GroupTable, numbers: Whole) -> Floats:
            name = BEST_ALGORITHM if self._ask.compiler.collectives == "best" else algorithm
            found: Floats = table.least(kind, name)[:, numbers]
            return found

        return self._once((kind, algorithm), least)

    def ring(self) -> Floats:
        """Return the least seconds of a ring in a matmul, for each byte of its tensor."""
        return self.each(ring_seconds_per_byte)

    def each(self, answer: Callable[[Slice, int], float]) -> Floats:
        """Return an answer for the slice and the devices of each group."""
        return self._once(answer, lambda table, numbers: table.each(answer)[numbers])

    def _algorithms(self, choice: CollectiveChoice, lows: Sequence[Lowering]) -> tuple[str, ...]:
        """Return the algorithms that may carry a collective out, in any of some lowerings."""
        if choice.kind in (CollectiveKind.PERMUTE, CollectiveKind.ALL_TO_ALL):
            return ("",)
        if self._ask.compiler.collectives == "best":
            return (BEST_ALGORITHM,)
        ways = {choice, choice._replace(in_ring=choice.made)}
        return tuple(sorted({each.way(low).algorithm for each in ways for low in lows})) or ("",)

    def _lowerings(self, reach: Reach) -> tuple[Sequence[tuple[Lowering, ...]], Whole]:
        """Return the distinct sets of lowerings that groups may have, and the index of each."""
        joined = reach is Reach.JOINED
        tiled, circular = (self._either, False) if joined else (self._tiled, self._ask.circular)
        given = self._ask.compiler, tiled, circular, reach
        return self._once(reach, lambda table, numbers: table.lowerings(*given))

    def _once(self, question: Hashable, answer: Callable[[GroupTable, Whole], _Answer]) -> _Answer:
        """Return `answer(table, numbers)` for each plan, [..., plan]."""
        found: _Answer | None = self._known.get(question)
        if found is None:
            found = self._known[question] = answer(*self._numbered)
        return found

    @cached_property
    def _numbered(self) -> tuple[GroupTable, Whole]:
        """The table of the groups, and the number of each plan's group."""
        plans, answers = self._ask.plans, self._ask.answers
        placed = plans.footprints or {}
        footprints = [placed[axis] for axis in self._axes if axis in placed]
        if not footprints or len(footprints) < len(self._axes):
            return answers.table, answers.numbers(plans.pod, self.devices)
        sizes = np.prod([each[:, :SIZES] for each in footprints], axis=0)
        strides = np.min([each[:, SIZES:] for each in footprints], axis=0)
        first, of = distinct_rows((plans.pod, *sizes.T, *strides.T))
        dies, *shape = sizes[first].T
        own = Footprints(answers.pods, plans.pod[first], np.stack(shape), dies, strides[first].T)
        every = np.arange(len(own))
        return GroupTable(own.pod, own.devices, own, every, every), of


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
