"""Least seconds of collectives across slices, on arrays of plans."""

from collections.abc import Sequence

from tpusim.bounds.questions import GroupQuestions, Groups, times, where
from tpusim.bounds.rings import RingChoices
from tpusim.bounds.surroundings import DCN_LINKS, Surroundings, Transfers
from tpusim.costs.collective import dcn_delay_seconds
from tpusim.costs.links import capacities
from tpusim.costs.route import dcn_route
from tpusim.graph import Einsum
from tpusim.hardware import Slice
from tpusim.lowering.decisions import REDUCTIONS
from tpusim.lowering.passes.merge_gradients import SMALL_GRADIENT
from tpusim.partition import CollectiveNode, Purpose, is_across, within_slice
from tpusim.program import CollectiveKind, Number


class AcrossSeconds:
    """The least seconds of collectives across slices."""

    def __init__(self, ask: GroupQuestions, rings: RingChoices) -> None:
        self.ask, self.rings = ask, rings

    def alone(self, kind: CollectiveKind, slices: Groups, nbytes: Number) -> Number:
        """Return the seconds of a collective of so many bytes by itself."""
        fixed = self.ask.across_slices(_dcn_fixed, kind, slices)
        moving = nbytes * self.ask.across_slices(_dcn_per_byte, kind, slices)
        return where(slices > 1, fixed + moving, 0.0)

    def of(self, node: CollectiveNode, around: Surroundings) -> Transfers:
        """Return the least seconds of a collective across slices.

        A weight may cross in the ring of its matmul; gradients of a loop cross beside the core.
        """
        slices, nbytes = self.ask.group(node.axes), self.ask.bytes(node)
        fixed = self.ask.across_slices(_dcn_fixed, node.kind, slices)
        moving = nbytes * self.ask.across_slices(_dcn_per_byte, node.kind, slices)
        alone, links = fixed + moving, {DCN_LINKS: moving}
        others = around.others(node)
        if node.purpose is Purpose.WEIGHT and node.kind is CollectiveKind.ALL_GATHER:
            within = [each for each in others if not is_across(each.axes)]
            if within:
                return self._gathered_across(within, around, alone, moving)
            waits = self.ask.habit(slices, False, "across_wait")
            outer = self.ask.habit(slices, False, "outer_across_wait")
            turns = times(self.ask.habit(slices, False, "across_in_turn"), alone)
            turns = turns * (not around.has_loop and not self.ask.circular)
            return Transfers(times(outer if around.has_loop else waits, alone), alone, links, turns)
        if node.purpose is Purpose.GRADIENT and node.kind in REDUCTIONS:
            merged = nbytes <= SMALL_GRADIENT if others else False
            alone = where(merged, moving, alone)
            waits = self.ask.habit(slices, False, "across_reductions_wait")
            return Transfers((0.0 if around.looped else waits) * alone, alone, {DCN_LINKS: moving})
        if node.purpose is Purpose.GRADIENT:
            return Transfers()
        return Transfers(alone, alone, links)

    def _gathered_across(
        self, further: Sequence[CollectiveNode], around: Surroundings, alone: Number, moving: Number
    ) -> Transfers:
        """Return the least seconds of a gather across slices whose result is gathered further.

        It may be a part of a ring over all devices instead.
        """
        own: Number = 1.0
        for node in further:
            group = self.ask.group(within_slice(node.axes))
            tiled = self.ask.tiled(node.axes)
            matmuls = [each for each in around.beside(node) if isinstance(each.op, Einsum)]
            ring = self.rings.may_be_fused(node, group, tiled)
            ring = ring & self.rings.ring_pays(matmuls, around.works, group, self.ask.bytes(node))
            waits = self.ask.habit(
                group, tiled, "outer_gathers_wait" if around.has_loop else "gathers_wait"
            )
            own = own * where(ring, 0.0, 1.0)
        return Transfers(own * waits * alone, own * alone, {DCN_LINKS: own * moving})


def _dcn_fixed(pod: Slice, slices: int, kind: CollectiveKind) -> float:
    """Return the seconds of a collective across slices before its bytes count."""
    return dcn_delay_seconds(kind, dcn_route(kind, slices), pod.chip)


def _dcn_per_byte(pod: Slice, slices: int, kind: CollectiveKind) -> float:
    """Return the seconds of a collective across slices for each byte of its tensor."""
    path = dcn_route(kind, slices)
    rates = capacities(pod.chip, pod.dcn_oversubscription, [link for link, _ in path.links])
    return max((path.share / rates[link] for link, _ in path.links), default=0.0)
