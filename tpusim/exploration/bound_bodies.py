"""Least seconds of the bodies of a partitioned graph, on arrays of plans."""

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from tpusim.base.phase import Phase
from tpusim.exploration.bound_collectives import (
    RING_LINKS,
    Groups,
    each_group,
    habits_of,
    seconds_per_byte,
)
from tpusim.exploration.bound_work import WorkSeconds
from tpusim.exploration.plan_arrays import PlanArrays
from tpusim.graph import Attention, Einsum
from tpusim.lowering.op_work import collective_bytes
from tpusim.partition import (
    DTYPE_BYTES,
    CollectiveNode,
    ComputeNode,
    LoopNode,
    Node,
    PartitionedGraph,
    Purpose,
    Sizes,
    sends_keys_round,
    weights_are_tiled,
    within_slice,
)
from tpusim.plan import Axes, Plan
from tpusim.program import CollectiveKind, Number, largest, smallest


@dataclass(slots=True)
class StepParts:
    """Least seconds of one microbatch, and of what a step does once.

    layers, forward_layers: of the core in loops over layers, both passes and the forward pass.
    edges, head: outside of these loops, and of that the part between the two passes.
    once, layers_once: updates of all weights, and of those in loops.
    links, layer_links: of the busiest group's links, of all and in loops.
    stored, layers_stored: bytes of weights and moments, and of sums of gradients, of all weights
        and of those in loops.
    stacked: bytes that the forward loops leave for the backward pass.
    """

    layers: Number = 0.0
    forward_layers: Number = 0.0
    edges: Number = 0.0
    head: Number = 0.0
    once: Number = 0.0
    layers_once: Number = 0.0
    links: Number = 0.0
    layer_links: Number = 0.0
    stored: Number = 0.0
    layers_stored: Number = 0.0
    stacked: Number = 0.0


@dataclass(slots=True)
class _BodyTotal:
    """Seconds of a body: of the core, and of the links of each group of axes."""

    core: Number = 0.0
    links: dict[Axes, Number] = field(default_factory=lambda: defaultdict(float))


class BodySeconds:
    """The seconds of one partitioned graph."""

    def __init__(
        self,
        plan: Plan,
        inner: Plan,
        partitioned: PartitionedGraph,
        sizes: Sizes,
        plans: PlanArrays,
    ) -> None:
        self.plan, self.inner = plan, inner
        self.partitioned, self.sizes, self.plans = partitioned, sizes, plans
        self.pods = tuple(plans.pods)
        used = self.pods[int(plans.pod[0])]
        self.work = WorkSeconds(inner, used.chip, partitioned.buffers, sizes)

    def step_parts(self) -> StepParts:
        """Return the seconds of the parts of a step."""
        nodes = self.partitioned.nodes
        loops = [at for at, node in enumerate(nodes) if isinstance(node, LoopNode)]
        backward = [at for at in loops if nodes[at].phase is not Phase.FORWARD]
        forward = [at for at in loops if nodes[at].phase is Phase.FORWARD]
        head = (max(forward), min(backward)) if forward and backward else (0, 0)
        parts = StepParts()
        whole = self._body(nodes, looped=False, recurrent=False, has_loop=bool(loops))
        parts.edges = whole.core
        between = nodes[head[0] + 1 : head[1]]
        if not any(isinstance(node, LoopNode) for node in between):
            parts.head = self._body(between, looped=False, recurrent=False, has_loop=True).core
        links = dict(whole.links)
        layer_links: dict[Axes, Number] = defaultdict(float)
        for at in loops:
            total = self._loop(nodes[at])
            parts.layers = parts.layers + total.core
            if at in forward:
                parts.forward_layers = parts.forward_layers + total.core
            for axes, seconds in total.links.items():
                links[axes] = links.get(axes, 0.0) + seconds
                layer_links[axes] = layer_links[axes] + seconds
        for seconds in links.values():
            parts.links = largest(parts.links, seconds)
        for seconds in layer_links.values():
            parts.layer_links = largest(parts.layer_links, seconds)
        weights = self.partitioned.weights
        parts.once = self.work.optimizer(weights)
        parts.layers_once = self.work.optimizer(tuple(w for w in weights if w.copies > 1))
        if self.plan.microbatches > 1 and not self.plan.active_schedule:
            parts.edges = parts.edges + self.work.accumulation(weights)
        self._add_bytes(parts, [nodes[at] for at in forward])
        return parts

    def _add_bytes(self, parts: StepParts, forward: list[Node]) -> None:
        weights = self.partitioned.weights
        in_layers = tuple(w for w in weights if w.copies > 1)
        summed = self.plan.microbatches > 1
        parts.stored = self.work.stored(weights, summed=summed)
        parts.layers_stored = self.work.stored(in_layers, summed=summed)
        if self.plan.remat.offload:
            return
        for node in forward:
            assert isinstance(node, LoopNode)
            if not node.scan.unrolled:
                held = sum(self.work.buffer(key) for key in node.saves)
                parts.stacked = parts.stacked + node.scan.trips * held

    def _loop(self, node: Node) -> _BodyTotal:
        assert isinstance(node, LoopNode)
        inner = self._body(node.body, looped=True, recurrent=bool(node.scan.steps), has_loop=False)
        total = _BodyTotal(node.scan.trips * inner.core)
        for axes, seconds in inner.links.items():
            total.links[axes] = node.scan.trips * seconds
        for each in node.body:
            if isinstance(each, LoopNode):
                nested = self._loop(each)
                total.core = total.core + node.scan.trips * nested.core
                for axes, seconds in nested.links.items():
                    total.links[axes] = total.links[axes] + node.scan.trips * seconds
        return total

    def _body(
        self, nodes: tuple[Node, ...], *, looped: bool, recurrent: bool, has_loop: bool
    ) -> _BodyTotal:
        """Return the seconds of the nodes of a body, without the loops in it."""
        computes = [node for node in nodes if isinstance(node, ComputeNode)]
        seconds = {
            node.name: self.work.node(node, looped=looped, recurrent=recurrent) for node in computes
        }
        total = _BodyTotal(sum(seconds.values()))
        for node in nodes:
            if isinstance(node, CollectiveNode):
                beside = [each for each in computes if _adjoins(node, each)]
                self._add(total, node, beside, seconds, has_loop)
        return total

    def _add(
        self,
        total: _BodyTotal,
        node: CollectiveNode,
        beside: list[ComputeNode],
        seconds: dict[str, Number],
        has_loop: bool,
    ) -> None:
        axes = within_slice(node.axes)
        if not axes:
            return
        nbytes = self._bytes(node)
        group = self._group(axes)
        alone = nbytes * self._per_byte(node.kind, group)
        total.links[axes] = total.links[axes] + alone
        if any(isinstance(each.op, Attention) for each in beside) and sends_keys_round(
            self.plan.context, node.axes
        ):
            return
        tiled = weights_are_tiled(self.inner, node.axes)
        waits = self._habit(node, group, tiled, has_loop)
        if node.purpose is Purpose.GRADIENT and node.kind is CollectiveKind.REDUCE_SCATTER:
            twice = each_group(
                lambda pod, n: 1.0 + habits_of(pod, self.inner.compiler, tiled, n).all_reduces,
                group,
                self.plans.pod,
                self.pods,
            )
            spent = alone * twice
        else:
            spent = alone
        matmuls = [each for each in beside if isinstance(each.op, Einsum)]
        if matmuls and len(matmuls) == len(beside):
            ring = nbytes * self._per_byte(node.kind, group, RING_LINKS)
            hidden = sum(seconds[each.name] for each in matmuls)
            spent = smallest(spent, largest(ring - hidden, 0.0))
        total.core = total.core + waits * spent

    def _habit(self, node: CollectiveNode, group: Groups, tiled: bool, has_loop: bool) -> Number:
        """Return 1 where the core waits for a collective that no matmul takes in, else 0."""
        name = "activations_wait"
        if node.purpose is Purpose.WEIGHT and node.kind is CollectiveKind.ALL_GATHER:
            name = "outer_gathers_wait" if has_loop else "gathers_wait"
        elif node.purpose is Purpose.GRADIENT:
            name = "reductions_wait"
        compiler = self.inner.compiler
        return each_group(
            lambda pod, n: float(getattr(habits_of(pod, compiler, tiled, n), name)),
            group,
            self.plans.pod,
            self.pods,
        )

    def _group(self, axes: Axes) -> Groups:
        ones = np.ones(len(self.plans), np.int64)
        found: Groups = np.prod([ones, *(self.plans.mesh[axis] for axis in axes)], axis=0)
        return found

    def _per_byte(self, kind: CollectiveKind, group: Groups, links: int = 0) -> Number:
        return each_group(
            lambda pod, n: seconds_per_byte(pod, n, kind, links),
            group,
            self.plans.pod,
            self.pods,
        )

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


def _adjoins(node: CollectiveNode, compute: ComputeNode) -> bool:
    """Return True if the operation reads what is gathered, or makes what is scattered."""
    if node.kind is CollectiveKind.ALL_GATHER:
        return node.writes[0] in compute.reads
    return node.maker == compute.op.name
