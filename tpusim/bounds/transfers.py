"""Least seconds of the collectives of a partitioned graph, on arrays of plans."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tpusim.bounds.across import AcrossSeconds
from tpusim.bounds.groups import GroupAnswers
from tpusim.bounds.habits import GroupHabits
from tpusim.bounds.plan_arrays import PlanArrays
from tpusim.bounds.questions import (
    Choices,
    GroupQuestions,
    Groups,
    for_any,
    times,
    where,
)
from tpusim.bounds.rings import RingChoices
from tpusim.bounds.surroundings import Surroundings, Transfers
from tpusim.costs.collective import BEST_ALGORITHM
from tpusim.graph import Attention
from tpusim.lowering.decisions import REDUCTIONS
from tpusim.lowering.observed.merged_all_reduces import LARGEST_MERGED
from tpusim.lowering.passes.merge_gradients import SMALL_GRADIENT
from tpusim.network import Algorithm
from tpusim.partition import CollectiveNode, ComputeNode, Purpose, Sizes, within_slice
from tpusim.plan import Axes, Plan
from tpusim.program import Collective, CollectiveKind, Number, largest, smallest


class TransferSeconds:
    """The least seconds of the collectives of plans that share a partitioned graph."""

    def __init__(
        self, plan: Plan, inner: Plan, sizes: Sizes, plans: PlanArrays, answers: GroupAnswers
    ) -> None:
        self.ask = GroupQuestions(plan, inner, sizes, plans, answers)
        self.rings = RingChoices(self.ask)
        self.across = AcrossSeconds(self.ask, self.rings)

    def of(self, node: CollectiveNode, around: Surroundings) -> Transfers:
        """Return the least seconds of a collective."""
        axes = within_slice(node.axes)
        return self._within(node, axes, around) if axes else self.across.of(node, around)

    def _within(self, node: CollectiveNode, axes: Axes, around: Surroundings) -> Transfers:
        group, nbytes = self.ask.group(axes), self.ask.bytes(node)
        tiled = self.ask.tiled(node.axes)
        least = self._alone(node, around.beside(node), group, tiled, nbytes)
        fixed, moving, links = least
        alone = largest(where(group > 1, fixed, 0.0) + moving, links)
        waits = self._waits(node, group, tiled, around, nbytes)
        if node.purpose is Purpose.GRADIENT:
            links = times(self.ask.habit(group, tiled, "activations_wait"), links)
        turns = times(self._in_turn(node, group, tiled, around), alone)
        beside = self.ask.habit(group, tiled, "at_once")
        certain, may_be = self._in_matmuls(node, around, group, tiled, nbytes)
        if for_any(certain) or for_any(may_be):
            fused = self.rings.fused(node, around, group, nbytes)
            alone = where(certain, fused, where(may_be, smallest(alone, fused), alone))
            ring = nbytes * self.ask.ring(group)
            links = where(certain | may_be, smallest(links, ring), links)
            beside = times(beside, where(certain | may_be, 0.0, 1.0))
        found = Transfers(times(waits, alone), alone, {axes: links}, turns, fixed)
        if for_any(beside):
            if node.purpose is Purpose.WEIGHT and node.kind is CollectiveKind.ALL_GATHER:
                shared = times(self.ask.habit(group, tiled, "shares_links"), links)
                found.at_once = times(beside, shared)
            drained, drained_links = self._drained(node, group, tiled, around, nbytes, least)
            found.drained = times(beside, drained)
            found.drained_links = times(beside, drained_links)
        return found

    def _in_matmuls(
        self, node: CollectiveNode, around: Surroundings, group: Groups, tiled: bool, nbytes: Number
    ) -> tuple[Choices, Choices]:
        """Return where matmuls take a collective in for certain, and where they may."""
        matmuls = around.matmuls(node)
        if not matmuls:
            return False, False
        may_be = self.rings.may_be_fused(node, group, tiled)
        if for_any(may_be):
            may_be = may_be & self.rings.ring_pays(matmuls, around.works, group, nbytes)
        return self.rings.is_fused(node, around, group), may_be

    def waited(self, op: Collective) -> Number:
        """Return the least seconds of a synchronous collective beside the graph, on the core.

        One within the slice and across has its shards cross after the links of the slice.
        """
        axes, ask = within_slice(op.axes), self.ask
        beyond = tuple(axis for axis in op.axes if axis not in axes)
        nbytes: Number = op.bytes
        found: Number = 0.0
        if axes:
            group = ask.group(axes)
            nbytes = nbytes / group
            names = (BEST_ALGORITHM if ask.best else op.algorithm,)
            if not beyond:
                fixed, *rates = ask.least(group, op.kind, False, _Algorithms(names))
                found = where(group > 1, fixed + op.bytes * largest(*rates), 0.0)
        if beyond and op.kind is CollectiveKind.ALL_REDUCE:
            found = self.across.alone(op.kind, ask.group(beyond), nbytes)
        return found

    def at_once(self, node: CollectiveNode) -> Number:
        """Return 1 where all gathers over the group start with their body, else 0."""
        axes = within_slice(node.axes)
        tiled = self.ask.tiled(node.axes)
        return self.ask.habit(self.ask.group(axes), tiled, "at_once") if axes else 0.0

    def _drained(
        self,
        node: CollectiveNode,
        group: Groups,
        tiled: bool,
        around: Surroundings,
        nbytes: Number,
        least: tuple[Number, Number, Number],
    ) -> tuple[Number, Number]:
        """Return the least seconds of a reduction of a gradient of a loop, and those of its links.

        It may be an all-reduce over further axes as well (`reduce_at_once`), and may be merged with
        others if it is small.

        least: of the collective by itself (`_alone`).
        """
        if node.purpose is not Purpose.GRADIENT or node.kind not in REDUCTIONS:
            return 0.0, 0.0
        fixed, moving, links = least
        large = np.asarray(nbytes > SMALL_GRADIENT)
        alone: Number = where(large, largest(fixed + moving, links), 0.0)
        further = [each for each in around.others(node) if each.kind is CollectiveKind.ALL_REDUCE]
        if not further or node.kind is CollectiveKind.ALL_REDUCE:
            return alone, where(large, links, 0.0)
        for each in further:
            axes = within_slice((*node.axes, *each.axes))
            joint = self.ask.group(tuple(axis for axis in self.ask.inner.mesh if axis in axes))
            _, per_byte, on_links = self._least(
                node, CollectiveKind.ALL_REDUCE, around.beside(node), joint, tiled
            )
            alone = smallest(alone, nbytes * largest(per_byte, on_links))
        return alone, 0.0

    def _in_turn(
        self, node: CollectiveNode, group: Groups, tiled: bool, around: Surroundings
    ) -> Number:
        """Return 1 for gathers of weights that start when the one before is done, else 0.

        They do where all are asynchronous and one is ahead (`passes.prefetch`).
        """
        if self.ask.circular or node.purpose is not Purpose.WEIGHT:
            return 0.0
        if node.kind is not CollectiveKind.ALL_GATHER or around.is_grouped:
            return 0.0
        name = "outer_in_turn" if around.has_loop else "gathers_in_turn"
        return self.ask.habit(group, tiled, name)

    def _alone(
        self,
        node: CollectiveNode,
        beside: Sequence[ComputeNode],
        group: Groups,
        tiled: bool,
        nbytes: Number,
    ) -> tuple[Number, Number, Number]:
        """Return the seconds before bytes, of bytes and of links of a collective by itself.

        Small reductions of gradients are merged into one all-reduce, and so may any all-reduce be.
        """
        gradient = node.purpose is Purpose.GRADIENT
        fixed, per_byte, links = self._least(node, node.kind, beside, group, tiled)
        if gradient and node.kind is CollectiveKind.REDUCE_SCATTER:
            all_reduce = self._least(node, CollectiveKind.ALL_REDUCE, beside, group, tiled)
            small = nbytes <= SMALL_GRADIENT
            fixed = where(small, 0.0, fixed)
            per_byte = where(small, smallest(per_byte, all_reduce[1]), per_byte)
            links = where(small, smallest(links, all_reduce[2]), links)
        elif gradient:
            fixed = 0.0 * fixed
        elif node.kind is CollectiveKind.ALL_REDUCE and node.purpose is Purpose.ACTIVATION:
            fixed = where(np.asarray(nbytes > LARGEST_MERGED), fixed, 0.0)
        return fixed, nbytes * per_byte, nbytes * links

    def _least(
        self,
        node: CollectiveNode,
        kind: CollectiveKind,
        beside: Sequence[ComputeNode],
        group: Groups,
        tiled: bool,
    ) -> tuple[Number, ...]:
        """Return `FIXED`, `PER_BYTE` and `ON_LINKS` of each plan."""
        return tuple(self.ask.least(group, kind, tiled, self._algorithms(node, kind, beside)))

    def _algorithms(
        self, node: CollectiveNode, kind: CollectiveKind, beside: Sequence[ComputeNode]
    ) -> "_Algorithms":
        """Return the algorithms that may carry out a collective."""
        if kind in (CollectiveKind.PERMUTE, CollectiveKind.ALL_TO_ALL):
            return _Algorithms(("",))
        if self.ask.best:
            return _Algorithms((BEST_ALGORITHM,))
        if node.purpose is Purpose.WEIGHT and kind is CollectiveKind.ALL_GATHER:
            return _Algorithms(habit="gather_algorithms")
        if node.purpose is Purpose.GRADIENT and kind is CollectiveKind.ALL_GATHER:
            return _Algorithms(("",), "gather_algorithms")
        if node.purpose is Purpose.GRADIENT and kind is not CollectiveKind.ALL_REDUCE:
            return _Algorithms(habit="reduce_algorithms")
        attends = any(isinstance(each.op, Attention) for each in beside)
        if attends and kind is CollectiveKind.REDUCE_SCATTER:
            return _Algorithms(("", str(Algorithm.ALL_REDUCE)))
        return _Algorithms(("",))

    def _waits(
        self, node: CollectiveNode, group: Groups, tiled: bool, around: Surroundings, nbytes: Number
    ) -> Number:
        """Return 1 where the core waits for a collective that no matmul takes in, else 0."""
        if node.kind is CollectiveKind.ALL_TO_ALL:
            return 1.0
        if node.kind is CollectiveKind.PERMUTE:
            return 0.0
        if node.purpose is Purpose.WEIGHT and node.kind is CollectiveKind.ALL_GATHER:
            name = "outer_gathers_wait" if around.has_loop else "gathers_wait"
            return self.ask.habit(group, tiled, name)
        if node.purpose is Purpose.GRADIENT:
            waits = self.ask.habit(group, tiled, "reductions_wait")
            if node.kind in REDUCTIONS and not around.others(node):
                return where(nbytes <= SMALL_GRADIENT, 1.0, waits)
            return waits
        return self.ask.habit(group, tiled, "activations_wait")


@dataclass(frozen=True, slots=True)
class _Algorithms:
    """Algorithms that may carry out a collective.

    names: whatever the lowering.
    habit: those that `GroupHabits` has under this name.
    """

    names: tuple[str, ...] = ()
    habit: str = ""

    def __call__(self, habits: GroupHabits) -> tuple[str, ...]:
        return tuple({*self.names, *(getattr(habits, self.habit) if self.habit else ())})
