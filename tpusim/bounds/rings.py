"""Collectives that matmuls take in as rings, on arrays of plans."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tpusim.bounds.groups import Reach
from tpusim.bounds.questions import Choices, GroupQuestions, Groups
from tpusim.bounds.surroundings import Surroundings
from tpusim.costs import work_seconds
from tpusim.lowering.collective_lowering import Lowering
from tpusim.lowering.passes.fuse_collectives import (
    FUSIBLE,
    LEAST_RING,
    may_fuse,
    peak_seconds,
    ring_beats_both,
    wants_ring,
)
from tpusim.partition import CollectiveNode, ComputeNode, Purpose
from tpusim.program import CollectiveKind, MatmulWork, Number, VectorWork, Work, largest

_NEARLY = 1 - 1e-9
_OF_ACTIVATIONS = (Purpose.ACTIVATION, Purpose.STATISTICS)


class RingChoices:
    """Where matmuls may take collectives in, and what that takes."""

    def __init__(self, ask: GroupQuestions) -> None:
        self.ask = ask
        self.pod = ask.pods[int(ask.plans.pod[0])]
        self.device = self.pod.chip.device

    def fused(
        self, node: CollectiveNode, around: Surroundings, group: Groups, nbytes: Number
    ) -> Number:
        """Return what a collective adds to the matmuls that take it in.

        Each runs in n / 2 steps, and a scatter adds up what arrives in each (`collective_matmul`);
        all but the last step wait for a part of the bytes of the ring.
        """
        steps = np.maximum(group // 2, 1).astype(float)
        ring = nbytes * self.ask.ring(group)
        added: Number = 0.0
        for each in around.matmuls(node):
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

    def is_fused(self, node: CollectiveNode, around: Surroundings, group: Groups) -> Choices:
        """Return True where matmuls take a collective in for certain: each has no other."""
        if self.ask.inner.compiler.lowering != "ideal" or node.purpose not in _OF_ACTIVATIONS:
            return False
        rivals = [
            each
            for each in around.moves
            if each is not node
            and each.kind in FUSIBLE
            and any(one is other for one in around.beside(each) for other in around.beside(node))
        ]
        return (group > 1) & (node.kind in FUSIBLE and not rivals)

    def ring_pays(
        self,
        matmuls: Sequence[ComputeNode],
        works: Mapping[str, Work],
        group: Groups,
        nbytes: Number,
    ) -> Choices:
        """Return True where a collective may pay as a ring in all of the matmuls that it has.

        It may be of all slices; how long the collective takes on its own is not known.
        """
        if self.ask.inner.compiler.lowering == "ideal":
            return True
        chip, devices = self.pod.chip, group.astype(float) * self.pod.num_slices
        compute = self.ask.inner.dtypes.compute
        ring = nbytes / (2 * chip.ici_bandwidth * max(chip.ici_shares, default=1.0))
        pays: Choices = devices > 2
        for each in matmuls:
            work = works[each.name]
            if isinstance(work, MatmulWork):
                slowest = min(self.device.flops[name] for name in {work.dtype, compute})
                longest = peak_seconds(work, slowest * _NEARLY)
                pays = pays & ring_beats_both(devices, longest, longest, ring)
        return pays

    def may_be_fused(self, node: CollectiveNode, group: Groups, tiled: bool) -> Choices:
        """Return True where a matmul may take a collective in."""
        compiler = self.ask.inner.compiler
        ideal = compiler.lowering == "ideal"
        if not may_fuse(node, compiler) or (self.ask.circular and not ideal):
            return False
        wanted = self.ask.every(group, tiled, _wants_none, node, reach=Reach.JOINED) < 1
        if node.purpose in (Purpose.WEIGHT, Purpose.GRADIENT):
            return wanted
        return wanted & (group > 1 if ideal else group >= LEAST_RING)


def _wants_none(low: Lowering, node: CollectiveNode) -> bool:
    return not wants_ring(node, low)


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
