"""Seconds of the core's work in a partitioned graph, on arrays of plans."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tpusim.bounds.plan_arrays import PlanArrays
from tpusim.costs import work_seconds
from tpusim.frames import accumulator, addition, cast_weights, trained, updates_of
from tpusim.graph import Convolution, Op, TensorRole
from tpusim.hardware import Chip
from tpusim.lowering import GradientDeps
from tpusim.lowering.loop_stacks import stack_copies
from tpusim.lowering.on_chip import without_on_chip
from tpusim.lowering.on_chip_buffers import on_chip_room
from tpusim.lowering.op_work import buffer_bytes, work_of
from tpusim.lowering.operand_dtypes import (
    cast_before,
    gather_dtypes,
    mark_quantised,
    reduced_in,
    with_reduced_dtype,
)
from tpusim.lowering.passes.quantise import insert_quantisations
from tpusim.lowering.softmax_passes import is_softmax, least_work
from tpusim.partition import (
    IMAGE_DIMS,
    PARTS,
    Arrangement,
    Buffer,
    CollectiveNode,
    ComputeNode,
    LoopNode,
    Node,
    PartitionedGraph,
    Sizes,
    StoredWeight,
    body_nodes,
)
from tpusim.plan import Axes, Plan
from tpusim.program import (
    AttentionWork,
    ConvolutionWork,
    MatmulWork,
    Number,
    VectorWork,
    Work,
    largest,
    seen_keys,
)


class WorkSeconds:
    """Seconds of nodes on arrays of sizes, none above what the lowered operation takes."""

    def __init__(
        self,
        plan: Plan,
        chip: Chip,
        partitioned: PartitionedGraph,
        sizes: Sizes,
        plans: PlanArrays | None = None,
    ) -> None:
        self.plans = plans
        self.plan, self.device, self.sizes, self.partitioned = plan, chip.device, sizes, partitioned
        self.buffers = reduced_in(plan.dtypes, partitioned.buffers)
        self.weights = frozenset(weight.name for weight in partitioned.weights)
        self.room = on_chip_room(chip, plan.compiler)
        rules = chip.compiler_rules
        self.few = max(rules.cut_examples, rules.image_rows - 1)
        self.recurrent = self.device.vmem_bytes + self.device.cmem_bytes

    def work(self, node: ComputeNode, looped: bool, recurrent: bool) -> Work:
        """Return the work of a compute node, without the rows of halos, which may be gathered.

        looped: it is in a loop, whose buffers do not stay on the chip, unless it is a recurrence.
        """
        rows = {key for key in node.reads if key in self.buffers and self.buffers[key].local.edge}
        node = replace(node, reads=tuple(key for key in node.reads if key not in rows))
        sizes, work = self.sizes, self._of_parts(node) if not looped else None
        if work is None:
            work = work_of(node, sizes, self.buffers)
        else:
            sizes = sizes.arranged(Arrangement(rows=0))
        if is_softmax(node) and isinstance(work, VectorWork):
            work = least_work(node, work, self.sizes)
        room = self.recurrent if recurrent else 0.0 if looped else self.room
        if room:
            keys = [key for key in {*node.reads, *node.writes} if key in self.buffers]
            kept = {
                key: np.asarray(buffer_bytes(self.buffers[key], sizes) <= room, np.float64)
                for key in keys
            }
            work = without_on_chip(work, node, kept, self.sizes, self.buffers)
        return _on_slowest(work, self.plan.context.balanced)

    def _of_parts(self, node: ComputeNode) -> Work | None:
        """Return the least work on images of few examples; None if no plan has so few.

        Images may be in another order, without padding, cut, and written by other operations: the
        epilogue is apart, and what the operation would compute as it reads is on the chip.
        """
        if self.plan.compiler.lowering == "ideal":
            return None
        examples = self._examples(node.op, dict(node.split))
        if not any(bool(np.any(each <= self.few)) for each in examples):
            return None
        alone = replace(
            node, epilogue=(), generated=(), writes=() if node.epilogue else node.writes
        )
        work = work_of(alone, self.sizes.arranged(Arrangement(rows=0)), self.buffers)
        if isinstance(work, ConvolutionWork):
            work = replace(work, batch=PARTS * work.batch, positions=work.positions / PARTS)
        if node.generated and isinstance(work, ConvolutionWork | MatmulWork):
            work = replace(work, read_bytes=0.0)
        return work

    def _examples(self, op: Op, split: Mapping[str, Axes]) -> list[Number]:
        """Return the examples a device of a convolution, or of each image that a group works on."""
        if isinstance(op, Convolution):
            return [self.sizes.product(op.examples, split)]
        images = (t for t in (*op.inputs, *op.outputs) if len(t.dims) >= IMAGE_DIMS)
        batches = {t.dims[0] for t in images if t.role is not TensorRole.PARAM}
        return [self.sizes.extent(dim, split.get(dim, ())) for dim in batches]

    def seconds(self, work: Work) -> Number:
        """Return the seconds of the work once, of attention in the kernel of each plan."""
        plans = self.plans
        if plans is None or plans.kernel is None or not isinstance(work, AttentionWork):
            return work_seconds(work, self.device)
        found: Number = 0.0
        for number, kernel in enumerate(plans.kernels):
            block = kernel.block_of(backward=work.backward)
            own = replace(work, block=block, fused=kernel.fused, library=kernel.library)
            each = work_seconds(own, self.device)
            found = np.where(plans.kernel == number, each, found)
        return found

    def computes(self, nodes: Sequence[Node]) -> list[ComputeNode]:
        """Return the compute nodes of a body in their dtypes, with casts of operands of matmuls.

        What is gathered in a narrow dtype is cast before, on its shard: such passes are left out.
        """
        dtypes = self.plan.dtypes
        made = [
            with_reduced_dtype(node, self.weights, dtypes)
            for node in nodes
            if isinstance(node, ComputeNode)
        ]
        if not dtypes.quantised:
            return made
        marked = mark_quantised(made, dtypes, self.weights)
        moved: set[str] = set()
        if dtypes.gathers_quantised:
            moved = {
                key for node in nodes if isinstance(node, CollectiveNode) for key in node.writes
            }
        computes = [node for node in marked if isinstance(node, ComputeNode)]
        known = {node.name for node in computes}
        read = {**self.buffers, **self._gathered}
        found = insert_quantisations(computes, read, dtypes.noise)
        self.buffers.update((key, read[key]) for key in read.keys() - self.buffers.keys())
        return [
            node
            for node in found
            if isinstance(node, ComputeNode)
            and (node.name in known or moved.isdisjoint(node.reads))
        ]

    @cached_property
    def _gathered(self) -> dict[str, Buffer]:
        """The copies of gathered weights, in the dtypes in which they travel."""
        nodes = [node for node, _ in body_nodes(self.partitioned.nodes)]
        dtypes = gather_dtypes(nodes, self.plan.dtypes)
        return {
            key: replace(self.buffers[key], dtype=dtypes[node.name])
            for node in nodes
            if isinstance(node, CollectiveNode) and node.name in dtypes
            for key in node.writes
        }

    def ring_attention(self, node: ComputeNode, devices: Number) -> Number:
        """Return the least seconds of a kernel round which a ring of devices sends its keys.

        It runs once for its own keys and once for each of the others; all together they visit the
        keys that queries see, in blocks that are no larger than those of a kernel of as many keys.
        """
        work = _on_slowest(work_of(node, self.sizes, self.buffers), self.plan.context.balanced)
        assert isinstance(work, AttentionWork)
        seen = seen_keys(work)
        widest = largest(seen, work.kv_len / devices)
        alone = replace(
            work,
            heads=work.heads * (seen / widest),
            kv_len=widest,
            causal=False,
            late=False,
            window=0,
            read_bytes=0.0,
            write_bytes=0.0,
        )
        return self.seconds(alone)

    def stacks(self, node: LoopNode, gradients: Number) -> Number:
        """Return the seconds of the copies between a loop's body and its stacks, in a trip.

        gradients: 1 where gradients are stacked, else 0.
        """
        if self.plan.compiler.lowering == "ideal" or node.scan.unrolled:
            return 0.0
        copies = stack_copies(node, self.sizes, self.buffers, self.plan.dtypes.of("grad"))
        return sum(
            work_seconds(op.work, self.device) * (gradients if op.scope == "gradients" else 1.0)
            for op in copies
        )

    def cast(self, weights: tuple[StoredWeight, ...]) -> Number:
        """Return the seconds to cast the weights' shards to the dtype in which they are used."""
        shards = cast_before(self.partitioned, self.plan.dtypes)
        some = tuple(w for w in weights if w.name in shards)
        op = cast_weights(some, self.plan.numerics, self.sizes)
        return work_seconds(op.work, self.device) if op else 0.0

    def stored(self, weights: tuple[StoredWeight, ...], summed: NDArray[np.float64]) -> Number:
        """Return the bytes of weights and moments, and of sums of gradients where there are.

        summed: 1 for each plan that has such sums, else 0.
        """
        dtypes, sizes = self.plan.dtypes, self.sizes
        found = sum(alloc.bytes for alloc in updates_of(self.plan, sizes).resident(weights))
        for weight in trained(weights) if summed.any() else ():
            found = found + summed * accumulator(weight, dtypes, sizes).bytes
        return found

    def accumulation(self, weights: tuple[StoredWeight, ...]) -> Number:
        """Return the seconds to add the gradients of one microbatch to their sums."""
        some = trained(weights)
        deps = GradientDeps({weight.name: "" for weight in some}, {})
        adds = [addition(weight, self.plan.dtypes, self.sizes, deps) for weight in some]
        return sum(work_seconds(op.work, self.device) for op in adds)


def _on_slowest(work: Work, balanced: bool) -> Work:
    """Return the work of the slowest device, as `ring_attention.on_slowest` does, on arrays.

    Plans that differ in which device is last take the work that is less.
    """
    if not isinstance(work, AttentionWork) or balanced or not work.causal:
        return work
    return replace(work, late=bool(np.all(work.q_len < work.kv_len)))
