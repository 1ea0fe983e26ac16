"""Seconds of the core's work in a partitioned graph, on arrays of plans."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tpusim.costs import work_seconds
from tpusim.hardware import Chip
from tpusim.lowering import optimizer
from tpusim.lowering.accumulate import GradientDeps, accumulator, addition
from tpusim.lowering.on_chip import without_on_chip
from tpusim.lowering.on_chip_buffers import on_chip_room
from tpusim.lowering.op_work import buffer_bytes, work_of
from tpusim.lowering.passes.transfer_dtypes import reduced_in
from tpusim.lowering.ring_attention import on_slowest  # noqa
from tpusim.partition import Buffer, ComputeNode, Sizes, StoredWeight
from tpusim.plan import Plan
from tpusim.program import (
    Compute,
    ConvolutionWork,
    MatmulWork,
    Number,
    Work,
)


class WorkSeconds:
    """Seconds of nodes on arrays of sizes, none above what the lowered operation takes."""

    def __init__(self, plan: Plan, chip: Chip, buffers: Mapping[str, Buffer], sizes: Sizes) -> None:
        self.plan, self.chip, self.sizes = plan, chip, sizes
        self.buffers = reduced_in(plan.dtypes, buffers)
        self.room = on_chip_room(chip, plan.compiler)
        self.recurrent = chip.device.vmem_bytes + chip.device.cmem_bytes

    def node(self, node: ComputeNode, *, looped: bool, recurrent: bool) -> Number:
        """Return the seconds of a compute node once.

        looped: it is in a loop, whose buffers do not stay on the chip, unless it is a recurrence.
        """
        work = work_of(node, self.sizes, self.buffers)
        room = self.recurrent if recurrent else 0.0 if looped else self.room
        if room:
            keys = [key for key in {*node.reads, *node.writes} if key in self.buffers]
            kept = {
                key: np.asarray(buffer_bytes(self.buffers[key], self.sizes) <= room, np.float64)
                for key in keys
            }
            work = without_on_chip(work, node, kept, self.sizes, self.buffers)
        return work_seconds(self._least(work), self.chip.device)

    def _least(self, work: Work) -> Work:
        """Return the work with the least that passes of the lowering can make of it."""
        if isinstance(work, MatmulWork | ConvolutionWork) and self.plan.dtypes.quantised:
            rates = self.chip.device.flops
            dtypes = {work.dtype, *self.plan.dtypes.matmuls.values()} & rates.keys()
            fastest = max(dtypes, key=lambda dtype: rates[dtype])
            return replace(work, dtype=fastest, read_bytes=0.0 * work.read_bytes)
        return work

    def optimizer(self, weights: tuple[StoredWeight, ...]) -> Number:
        """Return the seconds of the updates of weights, with the norms before them."""
        deps = GradientDeps({weight.name: "" for weight in weights}, {})
        given = self.plan, self.sizes
        ops = [
            *optimizer.clip(weights, *given, deps),
            *optimizer.rates(weights, *given, deps),
            *(op for w in optimizer.trained(weights) for op in optimizer.update(w, *given, "")),
        ]
        works = [op.work for op in ops if isinstance(op, Compute)]
        return sum(work_seconds(work, self.chip.device) for work in works)

    def buffer(self, key: str) -> Number:
        """Return the bytes of a buffer."""
        return buffer_bytes(self.buffers[key], self.sizes)

    def stored(self, weights: tuple[StoredWeight, ...], *, summed: bool) -> Number:
        """Return the bytes of weights and moments, and of sums of gradients where there are."""
        dtypes, sizes = self.plan.dtypes, self.sizes
        allocs = list(optimizer.resident(weights, self.plan, sizes))
        if summed:
            allocs += [accumulator(w, dtypes, sizes) for w in optimizer.trained(weights)]
        return sum(alloc.bytes for alloc in allocs)

    def accumulation(self, weights: tuple[StoredWeight, ...]) -> Number:
        """Return the seconds to add the gradients of one microbatch to their sums."""
        trained = optimizer.trained(weights)
        deps = GradientDeps({weight.name: "" for weight in trained}, {})
        adds = [addition(weight, self.plan.dtypes, self.sizes, deps) for weight in trained]
        return sum(work_seconds(op.work, self.chip.device) for op in adds)
