"""Least seconds of the collectives of a partitioned graph, on arrays of plans."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tpusim.costs import work_seconds
from tpusim.costs.collective import BEST_ALGORITHM, dcn_delay_seconds
from tpusim.costs.links import capacities
from tpusim.costs.route import dcn_route
from tpusim.exploration.bound_collectives import (
    LeastSeconds,
    habits_of,
    least_seconds,
    ring_seconds_per_byte,
)
from tpusim.exploration.bound_groups import DistinctGroups, GroupAnswers, Groups, SomeGroup
from tpusim.exploration.bound_surroundings import (
    DCN_LINKS,
    Surroundings,
    Transfers,
    adjoins,
)
from tpusim.exploration.plan_arrays import PlanArrays
from tpusim.graph import Attention, Einsum, is_sequence
from tpusim.hardware import Slice
from tpusim.lowering.decisions import REDUCTIONS
from tpusim.lowering.observed.merged_all_reduces import LARGEST_MERGED
from tpusim.lowering.op_work import collective_bytes
from tpusim.lowering.passes.merge_gradients import SMALL_GRADIENT
from tpusim.network import Algorithm
from tpusim.partition import (
    DTYPE_BYTES,
    CollectiveNode,
    ComputeNode,
    Purpose,
    Sizes,
    is_across,
    weights_are_tiled,
    within_slice,
)
from tpusim.plan import CIRCULAR, Axes, Plan
from tpusim.program import (
    CollectiveKind,
    MatmulWork,
    Number,
    VectorWork,
    Work,
    largest,
    smallest,
)

Choices: TypeAlias = NDArray[np.bool_]
"""True or False for each plan."""


class TransferSeconds:
    """The least seconds of the collectives of plans that share a partitioned graph."""

    def __init__(
        self, plan: Plan, inner: Plan, sizes: Sizes, plans: PlanArrays, answers: GroupAnswers
    ) -> None:
        self.inner, self.sizes, self.plans, self.answers = inner, sizes, plans, answers
        self.pods = plans.pods
        self.device = self.pods[int(plans.pod[0])].chip.device
        self.circular = plan.active_schedule == CIRCULAR
        self.best = inner.compiler.collectives == "best"
        self._groups: dict[Axes, Groups] = {}
        self._distinct: dict[int, DistinctGroups] = {}

    def of(self, node: CollectiveNode, around: Surroundings) -> Transfers:
        """Return the least seconds of a collective."""
        axes = within_slice(node.axes)
        return self._within(node, axes, around) if axes else self._across(node, around)

    def group(self, axes: Axes) -> Groups:
        """Return the devices of each plan's group over some axes."""
        if axes not in self._groups:
            made = DistinctGroups(self.plans, axes, self.answers)
            self._groups[axes] = made.devices
            self._distinct[id(made.devices)] = made
        return self._groups[axes]

    def _within(self, node: CollectiveNode, axes: Axes, around: Surroundings) -> Transfers:
        group, nbytes = self.group(axes), self._bytes(node)
        tiled = weights_are_tiled(self.inner, node.axes)
        fixed, moving, links = self._alone(node, around.computes, group, tiled, nbytes)
        alone = _where(group > 1, fixed, 0.0) + moving
        waits = self._waits(node, group, tiled, around, nbytes)
        if node.purpose is Purpose.GRADIENT:
            links = links * self._habit(group, tiled, "activations_wait")
        turns = self._in_turn(node, group, tiled, around) * alone
        if around.matmuls:
            fused = self._fused(node, around, group, nbytes)
            certain = self._is_fused(node, around, group)
            may_be = self._may_be_fused(node, group, tiled)
            may_be = may_be & self._ring_pays(around.matmuls, around.works, group, nbytes)
            alone = _where(certain, fused, _where(may_be, smallest(alone, fused), alone))
            ring = nbytes * self._ring(group)
            links = _where(certain | may_be, smallest(links, ring), links)
        return Transfers(waits * alone, alone, {axes: links}, turns)

    def _in_turn(
        self, node: CollectiveNode, group: Groups, tiled: bool, around: Surroundings
    ) -> Number:
        """Return 1 for gathers of weights that start when the one before is done, else 0.

        They do where all are asynchronous and one is ahead (`passes.prefetch`).
        """
        if self.circular or node.purpose is not Purpose.WEIGHT:
            return 0.0
        if node.kind is not CollectiveKind.ALL_GATHER or around.is_grouped:
            return 0.0
        has_loop = around.has_loop
        return self._habit(
            group,
            tiled,
            "outer_in_turn" if has_loop else "gathers_in_turn",
        )

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
            fixed = _where(small, 0.0, fixed)
            per_byte = _where(small, smallest(per_byte, all_reduce[1]), per_byte)
            links = _where(small, smallest(links, all_reduce[2]), links)
        elif gradient:
            fixed = 0.0 * fixed
        elif node.kind is CollectiveKind.ALL_REDUCE and node.purpose is Purpose.ACTIVATION:
            fixed = _where(np.asarray(nbytes > LARGEST_MERGED), fixed, 0.0)
        return fixed, nbytes * per_byte, nbytes * links

    def _least(
        self,
        node: CollectiveNode,
        kind: CollectiveKind,
        beside: Sequence[ComputeNode],
        group: Groups,
        tiled: bool,
    ) -> tuple[Number, ...]:
        """Return the numbers of `LeastSeconds` of each plan."""
        compiler, circular, best = self.inner.compiler, self.circular, self.best
        attends = any(isinstance(each.op, Attention) for each in beside)

        def algorithms(group: SomeGroup) -> tuple[str, ...]:
            if kind in (CollectiveKind.PERMUTE, CollectiveKind.ALL_TO_ALL):
                return ("",)
            if best:
                return (BEST_ALGORITHM,)
            habits = habits_of(group.pod, compiler, tiled, group.devices, circular, group.lie)
            if node.purpose is Purpose.WEIGHT and kind is CollectiveKind.ALL_GATHER:
                return habits.gather_algorithms
            if node.purpose is Purpose.GRADIENT:
                if kind is CollectiveKind.ALL_GATHER:
                    return tuple({"", *habits.gather_algorithms})
                return ("",) if kind is CollectiveKind.ALL_REDUCE else habits.reduce_algorithms
            sums_keys = attends and kind is CollectiveKind.REDUCE_SCATTER
            return ("", str(Algorithm.ALL_REDUCE)) if sums_keys else ("",)

        def least(group: SomeGroup) -> LeastSeconds:
            return least_seconds(group.pod, group.devices, kind, algorithms(group), group.lie)

        question = ("least", kind, node.purpose, attends, tiled, compiler, circular, best)
        return tuple(self._distinct[id(group)].each(question, least))

    def _fused(
        self, node: CollectiveNode, around: Surroundings, group: Groups, nbytes: Number
    ) -> Number:
        """Return what a collective adds to the matmuls that take it in.

        Each runs in n / 2 steps, and a scatter adds up what arrives in each (`collective_matmul`);
        all but the last step wait for a part of the bytes of the ring.
        """
        steps = np.maximum(group // 2, 1).astype(float)
        ring = nbytes * self._ring(group)
        added: Number = 0.0
        for each in around.matmuls:
            work = around.works[each.name]
            if not isinstance(work, MatmulWork):
                return 0.0 * ring
            chunks = steps * work_seconds(_chunk(each, work, node, steps), self.device)
            if node.kind is CollectiveKind.REDUCE_SCATTER:
                part = nbytes / steps
                chunks = chunks + steps * work_seconds(VectorWork(2 * part, part, 0.0), self.device)
            passing = ring * (1 - 1 / steps)
            added = added + largest(chunks, passing) - around.seconds[each.name]
        return largest(added, 0.0)

    def _is_fused(self, node: CollectiveNode, around: Surroundings, group: Groups) -> Choices:
        """Return True where matmuls take a collective in for certain: each has no other."""
        if self.inner.compiler.lowering != "ideal" or node.purpose not in _OF_ACTIVATIONS:
            return np.zeros(len(self.plans), bool)
        rivals = [
            each
            for each in around.nodes
            if isinstance(each, CollectiveNode)
            and each is not node
            and each.kind in _FUSIBLE
            and any(adjoins(each, compute) for compute in around.computes)
        ]
        return (group > 1) & (node.kind in _FUSIBLE and not rivals)

    def _ring_pays(
        self,
        matmuls: Sequence[ComputeNode],
        works: Mapping[str, Work],
        group: Groups,
        nbytes: Number,
    ) -> Choices:
        """Return True where a collective may pay as a ring in all of the matmuls that it has.

        A ring is chosen where the matmul at its peak takes longer than two chunks on the wire
        (`fuse_collectives.fusion_pays`), be they of all slices.
        """
        if self.inner.compiler.lowering == "ideal":
            return np.ones(len(self.plans), bool)
        chip, slices = self.pods[0].chip, self.pods[0].num_slices
        chunks = 2 * nbytes / (2 * chip.ici_bandwidth) / (group * slices)
        pays: Choices = group * slices > 2
        for each in matmuls:
            work = works[each.name]
            if isinstance(work, MatmulWork):
                flops = 2 * work.batch * work.m * work.k * work.n
                slowest = min(self.device.flops[name] for name in self._dtypes(work))
                pays = pays & (flops / slowest >= _NEARLY * chunks)
        return pays

    def _dtypes(self, work: MatmulWork) -> set[str]:
        """Return the dtypes in which a matmul may be taken to multiply."""
        return {work.dtype, self.inner.dtypes.compute}

    def _may_be_fused(self, node: CollectiveNode, group: Groups, tiled: bool) -> Choices:
        """Return True where a matmul may take a collective in."""
        compiler = self.inner.compiler
        ideal = compiler.lowering == "ideal"
        if not (compiler.collective_matmul or ideal) or (self.circular and not ideal):
            return np.zeros(len(self.plans), bool)
        if node.kind not in _FUSIBLE:
            return np.zeros(len(self.plans), bool)
        if node.purpose is Purpose.WEIGHT:
            return np.asarray(self._habit(group, tiled, "weight_rings")) > 0
        if node.purpose is Purpose.GRADIENT:
            return np.asarray(self._habit(group, tiled, "gradient_rings")) > 0
        if ideal:
            return group > 1
        if node.kind is CollectiveKind.ALL_GATHER and is_sequence(node.dim):
            return np.zeros(len(self.plans), bool)  # as in `fuse_collectives`
        return group >= 4

    def _waits(
        self,
        node: CollectiveNode,
        group: Groups,
        tiled: bool,
        around: Surroundings,
        nbytes: Number,
    ) -> Number:
        """Return 1 where the core waits for a collective that no matmul takes in, else 0."""
        if node.kind is CollectiveKind.ALL_TO_ALL:
            return 1.0
        if node.kind is CollectiveKind.PERMUTE:
            return 0.0
        if node.purpose is Purpose.WEIGHT and node.kind is CollectiveKind.ALL_GATHER:
            if around.has_loop:
                return self._habit(group, tiled, "outer_gathers_wait")
            return self._habit(group, tiled, "gathers_wait")
        if node.purpose is Purpose.GRADIENT:
            waits = self._habit(group, tiled, "reductions_wait")
            if node.kind in REDUCTIONS and not around.others(node):
                return _where(nbytes <= SMALL_GRADIENT, 1.0, waits)
            return waits
        return self._habit(group, tiled, "activations_wait")

    def _across(self, node: CollectiveNode, around: Surroundings) -> Transfers:
        """Return the least seconds of a collective across slices.

        A weight may cross in the ring of its matmul; gradients of a loop cross beside the core.
        """
        slices, nbytes = self.group(node.axes), self._bytes(node)
        fixed = self._across_slices(_dcn_fixed, node.kind, slices)
        moving = nbytes * self._across_slices(_dcn_per_byte, node.kind, slices)
        alone, links = fixed + moving, {DCN_LINKS: moving}
        others = around.others(node)
        if node.purpose is Purpose.WEIGHT and node.kind is CollectiveKind.ALL_GATHER:
            within = [each for each in others if not is_across(each.axes)]
            if within:
                return self._gathered_across(within, around, alone, moving)
            waits = self._habit(slices, False, "across_wait")
            outer = self._habit(slices, False, "outer_across_wait")
            turns = self._habit(slices, False, "across_in_turn") * alone
            turns = turns * (not around.has_loop and not self.circular)
            return Transfers((outer if around.has_loop else waits) * alone, alone, links, turns)
        if node.purpose is Purpose.GRADIENT and node.kind in REDUCTIONS:
            merged = nbytes <= SMALL_GRADIENT if others else False
            alone = _where(merged, moving, alone)
            waits = self._habit(slices, False, "across_reductions_wait")
            return Transfers((0.0 if around.looped else waits) * alone, alone, {DCN_LINKS: moving})
        if node.purpose is Purpose.GRADIENT:
            return Transfers()
        return Transfers(alone, alone, links)

    def _gathered_across(
        self,
        further: Sequence[CollectiveNode],
        around: Surroundings,
        alone: Number,
        moving: Number,
    ) -> Transfers:
        """Return the least seconds of a gather across slices whose result is gathered further.

        It may be a part of a ring over all devices instead.
        """
        own: Number = 1.0
        for node in further:
            group = self.group(within_slice(node.axes))
            tiled = weights_are_tiled(self.inner, node.axes)
            matmuls = [c for c in around.every if adjoins(node, c) and isinstance(c.op, Einsum)]
            ring = self._may_be_fused(node, group, tiled)
            ring = ring & self._ring_pays(matmuls, around.works, group, self._bytes(node))
            waits = self._habit(
                group,
                tiled,
                "outer_gathers_wait" if around.has_loop else "gathers_wait",
            )
            own = own * _where(ring, 0.0, 1.0)
        return Transfers(own * waits * alone, own * alone, {DCN_LINKS: own * moving})

    def _habit(self, group: Groups, tiled: bool, name: str) -> Number:
        """Return one of the habits of each plan's group, 1 or 0."""
        compiler, circular = self.inner.compiler, self.circular

        def habit(some: SomeGroup) -> float:
            habits = habits_of(some.pod, compiler, tiled, some.devices, circular, some.lie)
            return float(getattr(habits, name))

        return self._each((name, compiler, tiled, circular), habit, group)

    def _ring(self, group: Groups) -> Number:
        return self._each("ring", lambda some: ring_seconds_per_byte(some.pod, some.devices), group)

    def _across_slices(
        self,
        seconds: Callable[[Slice, int, CollectiveKind], float],
        kind: CollectiveKind,
        slices: Groups,
    ) -> Number:
        return self._each(
            (seconds, kind), lambda some: seconds(some.pod, some.devices, kind), slices
        )

    def _each(
        self, question: Hashable, answer: Callable[[SomeGroup], float], group: Groups
    ) -> Number:
        return self._distinct[id(group)].each(question, answer)

    def _bytes(self, node: CollectiveNode) -> Number:
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


_NEARLY = 1 - 1e-9
_FUSIBLE = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
_OF_ACTIVATIONS = (Purpose.ACTIVATION, Purpose.STATISTICS)


def _where(chosen: Choices | bool, one: Number, other: Number) -> Number:
    found: NDArray[np.float64] = np.asarray(np.where(chosen, one, other), np.float64)
    return found


def _chunk(
    compute: ComputeNode, work: MatmulWork, node: CollectiveNode, steps: Number
) -> MatmulWork:
    """Return one of the equal parts in which a ring multiplies, without what it sums up."""
    op = compute.op
    side = "k"
    if node.dim in op.outputs[0].dims:
        side = "m" if node.dim in op.inputs[0].dims else "n"
    return replace(
        work,
        **{side: getattr(work, side) / steps},
        read_bytes=work.read_bytes / steps,
        write_bytes=work.write_bytes / steps,
        epilogue_flops=0.0,
    )


def _dcn_fixed(pod: Slice, slices: int, kind: CollectiveKind) -> float:
    """Return the seconds of a collective across slices before its bytes count."""
    return dcn_delay_seconds(kind, dcn_route(kind, slices), pod.chip)


def _dcn_per_byte(pod: Slice, slices: int, kind: CollectiveKind) -> float:
    """Return the seconds of a collective across slices for each byte of its tensor."""
    path = dcn_route(kind, slices)
    rates = capacities(pod.chip, pod.dcn_oversubscription, [link for link, _ in path.links])
    return max((path.share / rates[link] for link, _ in path.links), default=0.0)
