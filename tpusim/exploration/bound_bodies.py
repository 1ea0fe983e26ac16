"""Least seconds of the bodies of a partitioned graph, on arrays of plans."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tpusim.base.phase import Phase
from tpusim.exploration.bound_groups import GroupAnswers
from tpusim.exploration.bound_surroundings import LinkName, Surroundings, adjoins
from tpusim.exploration.bound_transfers import TransferSeconds
from tpusim.exploration.bound_work import WorkSeconds
from tpusim.exploration.plan_arrays import PlanArrays
from tpusim.graph import Attention
from tpusim.partition import (
    CollectiveNode,
    ComputeNode,
    LoopNode,
    Node,
    PartitionedGraph,
    Purpose,
    Sizes,
    sends_keys_round,
)
from tpusim.plan import Plan
from tpusim.program import Number, largest


@dataclass(slots=True)
class StepParts:
    """Least seconds of one microbatch, and of what a step does once.

    layers, forward_layers: of the core in loops over layers, both passes and the forward pass.
    edges, head: outside of these loops, and of that the part between the two passes.
    path: of the longest row of operations and transfers that wait for each other.
    layers_core: of the core's work in loops.
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
    path: Number = 0.0
    layers_core: Number = 0.0
    once: Number = 0.0
    layers_once: Number = 0.0
    links: Number = 0.0
    layer_links: Number = 0.0
    stored: Number = 0.0
    layers_stored: Number = 0.0
    stacked: Number = 0.0


@dataclass(slots=True)
class _BodyTotal:
    """Seconds of a body.

    core: of the core's work.
    least: until the core is done with the body.
    links: of the links of each group of axes.
    """

    core: Number = 0.0
    least: Number = 0.0
    links: dict[LinkName, Number] = field(default_factory=lambda: defaultdict(float))


class BodySeconds:
    """The seconds of one partitioned graph."""

    def __init__(
        self,
        plan: Plan,
        inner: Plan,
        partitioned: PartitionedGraph,
        sizes: Sizes,
        plans: PlanArrays,
        answers: GroupAnswers,
    ) -> None:
        self.plan, self.inner = plan, inner
        self.partitioned, self.sizes, self.plans = partitioned, sizes, plans
        used = plans.pods[int(plans.pod[0])]
        self.work = WorkSeconds(inner, used.chip, partitioned, sizes)
        self.transfers = TransferSeconds(plan, inner, sizes, plans, answers)

    def step_parts(self) -> StepParts:
        """Return the seconds of the parts of a step."""
        nodes = self.partitioned.nodes
        loops = [at for at, node in enumerate(nodes) if isinstance(node, LoopNode)]
        backward = [at for at in loops if nodes[at].phase is not Phase.FORWARD]
        forward = [at for at in loops if nodes[at].phase is Phase.FORWARD]
        head = (max(forward), min(backward)) if forward and backward else (0, 0)
        parts = StepParts()
        found = {nodes[at].name: self._loop(nodes[at]) for at in loops}
        whole = self._body(nodes, found, has_loop=bool(loops))
        parts.edges = whole.core
        parts.path = whole.least
        between = nodes[head[0] + 1 : head[1]]
        if not any(isinstance(node, LoopNode) for node in between):
            parts.head = self._body(between, {}, has_loop=True).core
        links = dict(whole.links)
        layer_links: dict[LinkName, Number] = defaultdict(float)
        for at in loops:
            total = found[nodes[at].name]
            parts.layers = parts.layers + total.least
            parts.layers_core = parts.layers_core + total.core
            if at in forward:
                parts.forward_layers = parts.forward_layers + total.least
            for link, seconds in total.links.items():
                links[link] = links.get(link, 0.0) + seconds
                layer_links[link] = layer_links[link] + seconds
        for seconds in links.values():
            parts.links = largest(parts.links, seconds)
        for seconds in layer_links.values():
            parts.layer_links = largest(parts.layer_links, seconds)
        weights = self.partitioned.weights
        in_layers = tuple(w for w in weights if w.copies > 1)
        parts.once = self.work.optimizer(weights) + self.work.cast(weights)
        parts.layers_once = self.work.optimizer(in_layers)
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
        nested = {each.name: self._loop(each) for each in node.body if isinstance(each, LoopNode)}
        inner = self._body(node.body, nested, recurrent=bool(node.scan.steps), looped=True)
        trips, copies = node.scan.trips, self.work.stacks(node)
        core = inner.core + copies + sum(each.core for each in nested.values())
        least = inner.core + copies + sum(each.least for each in nested.values())
        total = _BodyTotal(trips * core, trips * largest(least, inner.least))
        for each in (inner, *nested.values()):
            for link, seconds in each.links.items():
                total.links[link] = total.links[link] + trips * seconds
        return total

    def _body(
        self,
        nodes: tuple[Node, ...],
        loops: Mapping[str, _BodyTotal],
        *,
        looped: bool = False,
        recurrent: bool = False,
        has_loop: bool = False,
    ) -> _BodyTotal:
        """Return the seconds of a body: `core` and `links` without the loops in it."""
        computes = self.work.quantised(nodes)
        rounds = self._attentions_in_rings(nodes, computes)
        works = {each.name: self.work.work(each, looped, recurrent) for each in computes}
        seconds = {
            node.name: self.work.ring_attention(node, rounds[node.name])
            if node.name in rounds
            else self.work.seconds(works[node.name])
            for node in computes
        }
        total, moves, turns = _BodyTotal(sum(seconds.values())), {}, []
        awaited: dict[LinkName, Number] = defaultdict(float)
        read = {key for node in nodes for key in node.reads}
        for node in nodes:
            if isinstance(node, CollectiveNode):
                beside = [each for each in computes if adjoins(node, each)]
                if any(each.name in rounds for each in beside):
                    continue
                around = Surroundings(nodes, computes, beside, works, seconds, looped, has_loop)
                found = self.transfers.of(node, around)
                moves[node.name] = found.alone
                turns.append(found.in_turn)
                total.core = total.core + found.core
                for link, busy in found.links.items():
                    total.links[link] = total.links[link] + busy
                    if node.purpose is not Purpose.GRADIENT and node.writes[0] in read:
                        awaited[link] = awaited[link] + busy
        total.least = largest(longest_path(nodes, seconds | moves, loops), sum(turns))
        for busy in awaited.values():
            total.least = largest(total.least, busy)
        return total

    def _attentions_in_rings(
        self, nodes: tuple[Node, ...], computes: list[ComputeNode]
    ) -> dict[str, Number]:
        """Return the kernels round which keys may be sent, each with the devices of a ring."""
        rings = [
            node
            for node in nodes
            if isinstance(node, CollectiveNode) and sends_keys_round(self.plan.context, node.axes)
        ]
        return {
            compute.name: self.transfers.group(node.axes).astype(float)
            for node in rings
            for compute in computes
            if isinstance(compute.op, Attention) and adjoins(node, compute)
        }


def longest_path(
    nodes: Sequence[Node], seconds: Mapping[str, Number], loops: Mapping[str, _BodyTotal]
) -> Number:
    """Return the seconds of the longest row of nodes of a body, each of which waits for the last.

    seconds: of the nodes that take time.
    loops: totals of the loops.

    All begin after the body does, also gathers that wait for nothing. What no other operation of
    the body reads holds up nothing in it, nor do reductions of gradients, which may be read an
    iteration later. Of a loop that reads what a transfer brings, the first iteration may run before
    it has come.
    """
    brought = {key for node in nodes if isinstance(node, CollectiveNode) for key in node.writes}
    after: dict[str, Number] = {}
    longest: Number = 0.0
    for node in reversed(nodes):
        known = [after[key] for key in node.writes if key in after]
        rest: Number = 0.0
        for each in known:
            rest = largest(rest, each)
        if isinstance(node, CollectiveNode) and (not known or node.purpose is Purpose.GRADIENT):
            continue
        is_loop = isinstance(node, LoopNode)
        took = loops[node.name].least if is_loop else seconds.get(node.name, 0.0)
        longest = largest(longest, took + rest)
        for key in node.reads:
            share = 1.0
            if isinstance(node, LoopNode) and key in brought:
                share = 1 - 1 / node.scan.trips
            after[key] = largest(after.get(key, 0.0), share * took + rest)
    return longest
