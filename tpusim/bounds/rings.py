"""Collectives that matmuls take in as rings, on arrays of plans."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tpusim.bounds.questions import Choices, GroupQuestions, Groups
from tpusim.bounds.surroundings import Surroundings
from tpusim.costs import work_seconds
from tpusim.graph import is_sequence
from tpusim.partition import CollectiveNode, ComputeNode, Purpose
from tpusim.program import CollectiveKind, MatmulWork, Number, VectorWork, Work, largest

_NEARLY = 1 - 1e-9
_FUSIBLE = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
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
            and each.kind in _FUSIBLE
            and any(one is other for one in around.beside(each) for other in around.beside(node))
        ]
        return (group > 1) & (node.kind in _FUSIBLE and not rivals)

    def ring_pays(
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
        if self.ask.inner.compiler.lowering == "ideal":
            return True
        chip, slices = self.pod.chip, self.pod.num_slices
        compute = self.ask.inner.dtypes.compute
        rate = chip.ici_bandwidth * max(chip.ici_shares, default=1.0)
        chunks = 2 * nbytes / (2 * rate) / (group * slices)
        pays: Choices = group * slices > 2
        for each in matmuls:
            work = works[each.name]
            if isinstance(work, MatmulWork):
                flops = 2 * work.batch * work.m * work.k * work.n
                slowest = min(self.device.flops[name] for name in {work.dtype, compute})
                pays = pays & (flops / slowest >= _NEARLY * chunks)
        return pays

    def may_be_fused(self, node: CollectiveNode, group: Groups, tiled: bool) -> Choices:
        """Return True where a matmul may take a collective in."""
        compiler = self.ask.inner.compiler
        ideal = compiler.lowering == "ideal"
        if not (compiler.collective_matmul or ideal) or (self.ask.circular and not ideal):
            return False
        if node.kind not in _FUSIBLE:
            return False
        if node.purpose is Purpose.WEIGHT:
            return self.ask.habit(group, tiled, "weight_rings") > 0
        if node.purpose is Purpose.GRADIENT:
            return self.ask.habit(group, tiled, "gradient_rings") > 0
        if ideal:
            return group > 1
        if node.kind is CollectiveKind.ALL_GATHER and is_sequence(node.dim):
            return False  # as in `fuse_collectives`
        return group >= 4


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
