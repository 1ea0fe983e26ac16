"""Least seconds of the collectives of a partitioned graph, on arrays of plans.

How a collective runs is the choice of the lowering (`CollectiveChoice`), asked of all lowerings
that its group may have; where they differ, the least counts.
"""

from collections.abc import Callable
from functools import cache

import numpy as np

from tpusim.bounds.groups import GroupAnswers
from tpusim.bounds.plan_arrays import PlanArrays
from tpusim.bounds.questions import GroupQuestions, PlanGroups, for_any, times, where
from tpusim.bounds.rings import RingChoices
from tpusim.bounds.surroundings import DCN_LINKS, Surroundings, Transfers
from tpusim.costs.collective import dcn_delay_seconds
from tpusim.costs.links import capacities
from tpusim.costs.route import dcn_route
from tpusim.hardware import Slice
from tpusim.lowering.collective_choice import CollectiveChoice, is_of_experts
from tpusim.lowering.collective_lowering import Lowering
from tpusim.lowering.observed.merged_all_reduces import LARGEST_MERGED
from tpusim.lowering.passes.merge_gradients import largest_merged
from tpusim.partition import CollectiveNode, Purpose, Sizes, is_across, within_slice
from tpusim.plan import Plan
from tpusim.program import Collective, CollectiveKind, Number, largest, smallest


class TransferSeconds:
    """The least seconds of the collectives of plans that share a partitioned graph."""

    def __init__(
        self, plan: Plan, inner: Plan, sizes: Sizes, plans: PlanArrays, answers: GroupAnswers
    ) -> None:
        self.ask = GroupQuestions(plan, inner, sizes, plans, answers)
        self.rings = RingChoices(self.ask)
        self.merges = "merge-gradients" not in inner.compiler.without_passes

    def of(self, node: CollectiveNode, around: Surroundings) -> Transfers:
        """Return the least seconds of a collective."""
        choice, group = around.choice(node), self.ask.group(node.axes, is_of_experts(node))
        if choice.across:
            return self._across(node, choice, group, around)
        return self._within(node, choice, group, around)

    def _within(
        self,
        node: CollectiveNode,
        choice: CollectiveChoice,
        group: PlanGroups,
        around: Surroundings,
    ) -> Transfers:
        nbytes = self.ask.bytes(node)
        merges = self.merges and choice.reduces_gradient and not around.is_late(node)
        fixed, moving, links = least = _alone(choice, group, nbytes, merges)
        alone = largest(where(group.devices > 1, fixed, 0.0) + moving, links)
        waits = _waits(choice, group, nbytes, merges)
        if node.purpose is Purpose.GRADIENT:
            links = times(group.every(_not_offloaded), links)
        turns = times(self._in_turn(choice, group, around), alone)
        beside = group.every(_gathers_at_once)
        merged: Number = 0.0
        hidden: Number = 0.0
        if merges:
            delay, *_ = group.least(_as_all_reduce(choice))
            small = (nbytes <= largest_merged(choice.kind)) & (group.devices > 1)
            merged, hidden = where(small, delay, 0.0), where(small, alone - moving, 0.0)
        if around.matmuls(node):
            certain = self.rings.is_fused(node, around, group)
            may_be = self.rings.may_be_fused(node, around, group, nbytes)
            if for_any(certain) or for_any(may_be):
                fused = self.rings.fused(node, around, group, nbytes)
                alone = where(certain, fused, where(may_be, smallest(alone, fused), alone))
                links = where(certain | may_be, smallest(links, nbytes * group.ring()), links)
                beside = times(beside, where(certain | may_be, 0.0, 1.0))
                merged, hidden = where(may_be, 0.0, merged), where(may_be, 0.0, hidden)
        found = Transfers(times(waits, alone), alone, {group.within: links}, turns, fixed)
        found.merged, found.hidden = merged, hidden
        if for_any(beside):
            if choice.gathers_weight:
                found.at_once = times(beside, times(group.every(_shares_links), links))
            drained, drained_links = self._drained(node, choice, around, nbytes, least)
            found.drained = times(beside, drained)
            found.drained_links = times(beside, drained_links)
        return found

    def _across(
        self,
        node: CollectiveNode,
        choice: CollectiveChoice,
        slices: PlanGroups,
        around: Surroundings,
    ) -> Transfers:
        """Return the least seconds of a collective across slices.

        A weight may cross in the ring of its matmul, over all devices.
        """
        nbytes, others = self.ask.bytes(node), around.others(node)
        moving = nbytes * slices.each(_dcn_per_byte(node.kind))
        alone: Number = slices.each(_dcn_fixed(node.kind)) + moving
        waits = slices.waits(choice)
        turns: Number = 0.0
        own: Number = 1.0
        if choice.gathers_weight:
            further = [each for each in others if not is_across(each.axes)]
            for each in further:
                group = self.ask.group(each.axes)
                ring = self.rings.may_be_fused(each, around, group, self.ask.bytes(each))
                own, waits = own * where(ring, 0.0, 1.0), group.waits(choice)
            if not further and not around.has_loop:
                turns = times(self._in_turn(choice, slices, around), alone)
        elif choice.reduces_gradient:
            alone = where(nbytes <= largest_merged(choice.kind) if others else False, moving, alone)
        elif choice.purpose is Purpose.GRADIENT:
            return Transfers()
        elif _may_be_merged(choice):
            alone = where(np.asarray(nbytes > LARGEST_MERGED), alone, moving)
        links = {DCN_LINKS: times(own, moving)}
        return Transfers(times(waits, times(own, alone)), times(own, alone), links, turns)

    def waited(self, op: Collective) -> Number:
        """Return the least seconds of a synchronous collective beside the graph, on the core.

        One within the slice and across has its shards cross after the links of the slice.
        """
        within = within_slice(op.axes)
        beyond = tuple(axis for axis in op.axes if axis not in within)
        group, slices = self.ask.group(within), self.ask.group(beyond)
        if not beyond:
            fixed, *rates = group.least_by(op.kind, op.algorithm)
            return where(group.devices > 1, fixed + op.bytes * largest(*rates), 0.0)
        if op.kind is not CollectiveKind.ALL_REDUCE:
            return 0.0
        nbytes = op.bytes / group.devices
        crossing = slices.each(_dcn_fixed(op.kind)) + nbytes * slices.each(_dcn_per_byte(op.kind))
        return where(slices.devices > 1, crossing, 0.0)

    def at_once(self, node: CollectiveNode) -> Number:
        """Return 1 where all gathers over the group start with their body, else 0."""
        return 0.0 if is_across(node.axes) else self.ask.group(node.axes).every(_gathers_at_once)

    def _drained(
        self,
        node: CollectiveNode,
        choice: CollectiveChoice,
        around: Surroundings,
        nbytes: Number,
        least: tuple[Number, Number, Number],
    ) -> tuple[Number, Number]:
        """Return the least seconds of a reduction of a gradient of a loop, and those of its links.

        It may be an all-reduce over further axes as well (`reduce_at_once`), and may be merged with
        others if it is small.

        least: of the collective by itself (`_alone`).
        """
        if not choice.reduces_gradient:
            return 0.0, 0.0
        fixed, moving, links = least
        large = np.asarray(nbytes > largest_merged(choice.kind))
        alone: Number = where(large, largest(fixed + moving, links), 0.0)
        further = [each for each in around.others(node) if each.kind is CollectiveKind.ALL_REDUCE]
        if not further or choice.kind is CollectiveKind.ALL_REDUCE:
            return alone, where(large, links, 0.0)
        for each in further:
            axes = within_slice((*node.axes, *each.axes))
            joint = self.ask.group(tuple(axis for axis in self.ask.inner.mesh if axis in axes))
            _, *rates = joint.least(_as_all_reduce(choice))
            alone = smallest(alone, nbytes * largest(*rates))
        return alone, 0.0

    def _in_turn(self, choice: CollectiveChoice, group: PlanGroups, around: Surroundings) -> Number:
        """Return 1 for gathers of weights that start when the one before is done, else 0.

        They do where all are asynchronous and one is ahead (`passes.prefetch`).
        """
        if self.ask.circular or around.is_grouped or not choice.gathers_weight:
            return 0.0
        return group.every(_gathers_in_turn, choice)


def _alone(
    choice: CollectiveChoice, group: PlanGroups, nbytes: Number, merges: bool
) -> tuple[Number, Number, Number]:
    """Return the seconds before bytes, of bytes and of links of a collective by itself.

    Small reductions of gradients are merged into one all-reduce, and so may any all-reduce be.

    merges: it is one for certain if it is small.
    """
    fixed, per_byte, links = group.least(choice)
    if choice.reduces_gradient and choice.kind is CollectiveKind.REDUCE_SCATTER:
        _, slower, shared = group.least(_as_all_reduce(choice))
        small = nbytes <= largest_merged(choice.kind)
        fixed = where(small, 0.0, fixed)
        per_byte = where(small, slower if merges else smallest(per_byte, slower), per_byte)
        links = where(small, shared if merges else smallest(links, shared), links)
    elif choice.purpose is Purpose.GRADIENT:
        fixed = (
            where(np.asarray(nbytes > largest_merged(choice.kind)), fixed, 0.0)
            if merges
            else 0.0 * fixed
        )
    elif _may_be_merged(choice):
        fixed = where(np.asarray(nbytes > LARGEST_MERGED), fixed, 0.0)
    return fixed, nbytes * per_byte, nbytes * links


def _may_be_merged(choice: CollectiveChoice) -> bool:
    """Return True for an all-reduce that may be part of another one, if it is small."""
    return choice.kind is CollectiveKind.ALL_REDUCE and choice.purpose is Purpose.ACTIVATION


def _waits(choice: CollectiveChoice, group: PlanGroups, nbytes: Number, merges: bool) -> Number:
    """Return 1 where the core waits for a collective that no matmul takes in, else 0.

    merges: it is merged with others if it is small.
    """
    if choice.kind is CollectiveKind.PERMUTE:
        return 0.0
    waits = group.waits(choice)
    if merges:
        return where(nbytes <= largest_merged(choice.kind), 1.0, waits)
    return waits


def _as_all_reduce(choice: CollectiveChoice) -> CollectiveChoice:
    """Return the choice of a reduction that is an all-reduce instead."""
    return choice._replace(kind=CollectiveKind.ALL_REDUCE)


def _not_offloaded(low: Lowering) -> bool:
    return not low.offloaded


def _gathers_at_once(low: Lowering) -> bool:
    return low.gathers_at_once


def _gathers_in_turn(choice: CollectiveChoice, low: Lowering) -> bool:
    return low.gathers_in_turn and not choice.waits(low)


def _shares_links(low: Lowering) -> bool:
    """Return True if gathers that start together move at the same time.

    Those that add up a padded buffer afterwards do not: the addition holds up the stream.
    """
    return not low.gather_algorithm


@cache
def _dcn_fixed(kind: CollectiveKind) -> Callable[[Slice, int], float]:
    """Return the seconds of a collective across slices before its bytes count."""
    return lambda pod, slices: dcn_delay_seconds(kind, dcn_route(kind, slices), pod.chip)


@cache
def _dcn_per_byte(kind: CollectiveKind) -> Callable[[Slice, int], float]:
    """Return the seconds of a collective across slices for each byte of its tensor."""

    def per_byte(pod: Slice, slices: int) -> float:
        path = dcn_route(kind, slices)
        rates = capacities(pod.chip, pod.dcn_oversubscription, [link for link, _ in path.links])
        return max((path.share / rates[link] for link, _ in path.links), default=0.0)

    return per_byte
