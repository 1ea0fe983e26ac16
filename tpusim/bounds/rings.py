"""Collectives that matmuls take in as rings, on arrays of plans."""

from dataclasses import replace

import numpy as np

from tpusim.bounds.groups import Reach
from tpusim.bounds.questions import Choices, GroupQuestions, PlanGroups
from tpusim.bounds.surroundings import Surroundings
from tpusim.costs import work_seconds
from tpusim.lowering.passes.fuse_collectives import (
    FUSIBLE,
    LEAST_RING,
    RingChoice,
    may_fuse,
    peak_seconds,
    ring_beats_both,
)
from tpusim.partition import CollectiveNode, ComputeNode, Purpose
from tpusim.program import CollectiveKind, MatmulWork, Number, VectorWork, largest

_NEARLY = 1 - 1e-9


class RingChoices:
    """Where matmuls may take collectives in, and what that takes."""

    def __init__(self, ask: GroupQuestions) -> None:
        self.ask, self.compiler = ask, ask.compiler
        self.pod = ask.plans.pods[int(ask.plans.pod[0])]
        self.ideal = self.compiler.lowering == "ideal"

    def fused(
        self, node: CollectiveNode, around: Surroundings, group: PlanGroups, nbytes: Number
    ) -> Number:
        """Return what a collective adds to the matmuls that take it in.

        Each runs in n / 2 steps, and a scatter adds up what arrives in each (`collective_matmul`);
        all but the last step wait for a part of the bytes of the ring.
        """
        steps = np.maximum(group.devices // 2, 1).astype(float)
        ring, device = nbytes * group.ring(), self.pod.chip.device
        added: Number = 0.0
        for each in around.matmuls(node):
            work = around.works[each.name]
            if not isinstance(work, MatmulWork):
                return 0.0 * ring
            chunks = steps * work_seconds(_chunk(each, work, node, steps), device)
            if node.kind is CollectiveKind.REDUCE_SCATTER:
                part = nbytes / steps
                chunks = chunks + steps * work_seconds(VectorWork(2 * part, part, 0.0), device)
            passing = ring * (1 - 1 / steps)
            added = added + largest(chunks, passing) - around.seconds[each.name]
        return largest(added, 0.0)

    def is_fused(self, node: CollectiveNode, around: Surroundings, group: PlanGroups) -> Choices:
        """Return True where matmuls take a collective in for certain: each has no other."""
        if not self.ideal or node.purpose in (Purpose.WEIGHT, Purpose.GRADIENT):
            return False
        rivals = [
            each
            for each in around.moves
            if each is not node
            and each.kind in FUSIBLE
            and any(one is other for one in around.beside(each) for other in around.beside(node))
        ]
        return (group.devices > 1) & (node.kind in FUSIBLE and not rivals)

    def may_be_fused(
        self, node: CollectiveNode, around: Surroundings, group: PlanGroups, nbytes: Number
    ) -> Choices:
        """Return True where matmuls may take a collective in, over all slices for a weight."""
        waits = self.ask.circular and not self.ideal and self.compiler.style != "plain"
        if waits or not may_fuse(node, self.compiler):
            return False
        choice = RingChoice.of(node)
        may_be: Choices = group.every(RingChoice.unwanted, choice, reach=Reach.JOINED) < 1
        if choice.purpose not in (Purpose.WEIGHT, Purpose.GRADIENT):
            may_be = may_be & (group.devices >= (2 if self.ideal else LEAST_RING))
        if self.ideal or not np.any(may_be):
            return may_be
        chip, devices = self.pod.chip, group.devices.astype(float) * self.pod.num_slices
        ring = nbytes / (2 * chip.ici_bandwidth * max(chip.ici_shares, default=1.0))
        may_be = may_be & (devices > 2)
        for work in (around.works[each.name] for each in around.beside(node)):
            if isinstance(work, MatmulWork):
                dtypes = {work.dtype, self.ask.dtypes.compute}
                slowest = min(chip.device.flops[name] for name in dtypes)
                longest = peak_seconds(work, slowest * _NEARLY)
                may_be = may_be & ring_beats_both(devices, longest, longest, ring)
        return may_be


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
