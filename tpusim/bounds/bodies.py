"""Least seconds of the bodies of a partitioned graph, on arrays of plans."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpusim.base.phase import Phase
from tpusim.bounds.groups import GroupAnswers
from tpusim.bounds.plan_arrays import PlanArrays
from tpusim.bounds.questions import for_any, times, where
from tpusim.bounds.schedule import is_ordered, ordered_seconds
from tpusim.bounds.surroundings import LinkName, Surroundings, Transfers
from tpusim.bounds.transfers import TransferSeconds
from tpusim.bounds.updates import UpdateSeconds
from tpusim.bounds.work import WorkSeconds
from tpusim.graph import Attention, Pointwise
from tpusim.lowering.op_work import buffer_bytes
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
from tpusim.plan import Axes, Plan
from tpusim.program import Number, largest


class LoopSeconds(NamedTuple):
    """Least seconds of an iteration of a loop over layers: its two passes, and its updates."""

    forward: Number = 0.0
    backward: Number = 0.0
    once: Number = 0.0


@dataclass(slots=True)
class OperationTimes:
    """Least seconds of one microbatch, and of what a step does once.

    layers: of the core in all loops.
    loops: each loop over layers that is not within another, by the name of its forward pass; of
        a pipeline alone.
    edges: outside of all loops.
    head: between the two passes over the layers.
    path: of the longest row of operations and transfers that wait for each other.
    layers_core: of the core's work in loops.
    once: updates of weights.
    links: of the busiest group's links.
    stored: bytes of weights and moments, and of sums of gradients.
    stacked: bytes that the forward loops leave for the backward pass.

    Of a pipeline, `once`, `links` and `stored` are those of loops alone.
    """

    layers: Number = 0.0
    loops: dict[str, LoopSeconds] = field(default_factory=dict)
    edges: Number = 0.0
    head: Number = 0.0
    path: Number = 0.0
    layers_core: Number = 0.0
    once: Number = 0.0
    links: Number = 0.0
    stored: Number = 0.0
    stacked: Number = 0.0

    def take(self, some: NDArray[np.int64]) -> "OperationTimes":
        """Return the seconds of the plans at these indices."""

        def taken(value: Number) -> Number:
            return value[some] if isinstance(value, np.ndarray) and value.ndim else value

        loops = {name: LoopSeconds(*map(taken, each)) for name, each in self.loops.items()}
        names = [each.name for each in fields(self) if each.name != "loops"]
        return replace(self, loops=loops, **{name: taken(getattr(self, name)) for name in names})


@dataclass(slots=True)
class _BodyTotal:
    """Seconds of a body.

    core: of the core's work.
    least: until the core is done with the body.
    drained: until it is done with the body of a loop and may go on with the next iteration; of a
        loop, until the core is done, with the waits for transfers between iterations.
    links: of the links of each group of axes.
    """

    core: Number = 0.0
    least: Number = 0.0
    drained: Number = 0.0
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
        stacked: Number,
    ) -> None:
        """stacked: 1 where loops over layers stack gradients: not those that run once; else 0."""
        self.plan, self.partitioned, self.sizes, self.stacked = plan, partitioned, sizes, stacked
        used = plans.pods[int(plans.pod[0])]
        self.work = WorkSeconds(inner, used.chip, partitioned, sizes, plans)
        self.transfers = TransferSeconds(plan, inner, sizes, plans, answers)
        self.summed = (plans.microbatches > 1).astype(float)
        self.updates = UpdateSeconds(plan, self.transfers)

    def operation_times(self) -> OperationTimes:
        """Return the seconds of the parts of a step."""
        nodes, staged = self.partitioned.nodes, bool(self.plan.active_schedule)
        loops = [node for node in nodes if isinstance(node, LoopNode)]
        found = {node.name: self._loop(node) for node in loops}
        common = self._without_sums_of_uses(nodes) if staged else nodes
        whole = self._body(common, found, has_loop=bool(loops))
        parts = OperationTimes(edges=whole.core, path=whole.least)
        links: dict[LinkName, Number] = defaultdict(float, {} if staged else whole.links)
        for total in found.values():
            parts.layers = parts.layers + total.drained
            parts.layers_core = parts.layers_core + total.core
            for link, seconds in total.links.items():
                links[link] = links[link] + seconds
        for seconds in links.values():
            parts.links = largest(parts.links, seconds)
        weights = tuple(w for w in self.partitioned.weights if w.copies > 1 or not staged)
        parts.once = self.updates.of(weights)
        parts.stored = self.work.stored(weights, self.summed)
        parts.stacked = self._stacked(loops)
        if staged:
            parts.layers = parts.layers + self.work.accumulation(weights)
            self._add_stages(parts, nodes, found)
            return parts
        parts.once = parts.once + self.work.cast(weights)
        if self.summed.any():
            parts.edges = parts.edges + self.summed * self.work.accumulation(weights)
        return parts

    def _without_sums_of_uses(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        """Leave out the sums of a weight's gradients of several uses, which stages divide."""
        alone = {weight.name for weight in self.partitioned.weights if weight.copies == 1}
        return tuple(node for node in nodes if _summed_gradient(node) not in alone)

    def _add_stages(
        self, parts: OperationTimes, nodes: tuple[Node, ...], found: Mapping[str, _BodyTotal]
    ) -> None:
        """Add what the stages of a pipeline differ in: their layers, and the head of the last."""
        names = [node.name for node in nodes]
        rows = [node for node in nodes if isinstance(node, LoopNode) and node.scan.over_layers]
        forward = [node for node in rows if node.phase is Phase.FORWARD]
        for node in forward:
            read = {t.name for op in node.scan.body for t in op.inputs}
            own = tuple(w for w in self.partitioned.weights if w.copies > 1 and w.name in read)
            trips, back = node.scan.trips, found.get(f"{node.name}/d", _BodyTotal())
            once = self.updates.of(own) if own else 0.0
            backward = back.least + self.work.accumulation(own)
            parts.loops[node.name] = LoopSeconds(
                found[node.name].least / trips, backward / trips, once / trips
            )
        last = forward[-1].name
        if f"{last}/d" in names:
            between = nodes[names.index(last) + 1 : names.index(f"{last}/d")]
            inside = [found[node.name].least for node in between if isinstance(node, LoopNode)]
            parts.head = self._body(between, found, has_loop=True).core + sum(inside)

    def _stacked(self, loops: Sequence[LoopNode]) -> Number:
        """Return the bytes that forward loops leave for the backward pass."""
        found: Number = 0.0
        for node in loops:
            kept = node.phase is Phase.FORWARD and not node.scan.unrolled
            if kept and not self.plan.remat.offload:
                held = sum(buffer_bytes(self.work.buffers[key], self.sizes) for key in node.saves)
                found = found + node.scan.trips * held
        return found

    def _loop(self, node: Node) -> _BodyTotal:
        assert isinstance(node, LoopNode)
        nested = {each.name: self._loop(each) for each in node.body if isinstance(each, LoopNode)}
        inner = self._body(node.body, nested, recurrent=bool(node.scan.steps), looped=True)
        stacked = self.stacked if node.scan.over_layers else 1.0
        trips, copies = node.scan.trips, self.work.stacks(node, stacked)
        core = inner.core + copies + sum(each.core for each in nested.values())
        least = inner.core + copies + sum(each.least for each in nested.values())
        once = largest(least, inner.least)
        period = largest(once, inner.drained)
        total = _BodyTotal(trips * core, trips * once, (trips - 1) * period + once)
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
        computes = self.work.computes(nodes)
        moves = [node for node in nodes if isinstance(node, CollectiveNode)]
        works = {each.name: self.work.work(each, looped, recurrent) for each in computes}
        balanced = self.work.plan.context.balanced
        around = Surroundings(nodes, computes, works, looped, has_loop, balanced)
        rounds, seconds = self._attentions_in_rings(around), around.seconds
        for node in computes:
            ring = rounds.get(node.name)
            seconds[node.name] = (
                self.work.seconds(works[node.name])
                if ring is None
                else self.work.ring_attention(node, ring)
            )
        total, kept = _BodyTotal(sum(seconds.values())), dict[str, Transfers]()
        awaited: dict[LinkName, Number] = defaultdict(float)
        merged: dict[Axes, Number] = {}
        hidden: dict[Axes, Number] = {}
        read = {key for node in nodes for key in node.reads}
        for move in moves:
            if any(each.name in rounds for each in around.beside(move)):
                continue
            found = kept[move.name] = self.transfers.of(move, around)
            total.core = total.core + found.core
            over = tuple(sorted(move.axes))
            merged[over] = largest(merged.get(over, 0.0), found.merged)
            hidden[over] = hidden.get(over, 0.0) + found.hidden
            for link, busy in found.links.items():
                total.links[link] = total.links[link] + busy
                if move.purpose is not Purpose.GRADIENT and move.writes[0] in read:
                    awaited[link] = awaited[link] + busy
        total.core = total.core + sum(largest(merged[over] - hidden[over], 0.0) for over in merged)
        rest = rests(nodes, seconds | {name: each.alone for name, each in kept.items()}, loops)
        turns = {name: each.in_turn for name, each in kept.items()}
        total.least = largest(rest.longest, sum(turns.values()) + rest.of_last(turns))
        for busy in awaited.values():
            total.least = largest(total.least, busy)
        if looped and not recurrent and not rounds and is_ordered(nodes, self.plan):
            at_once: Number = 1.0
            for move in moves:
                at_once = times(self.transfers.at_once(move), at_once)
            if for_any(at_once):
                ordered = ordered_seconds(nodes, seconds, kept)
                total.least = largest(total.least, times(at_once, ordered.core))
                total.drained = times(at_once, ordered.drained)
        return total

    def _attentions_in_rings(self, around: Surroundings) -> dict[str, Number]:
        """Return the kernels round which keys may be sent, each with the devices of a ring."""
        return {
            compute.name: self.transfers.ask.group(node.axes).devices.astype(float)
            for node in around.moves
            if sends_keys_round(self.plan.context, node.axes)
            for compute in around.beside(node)
            if isinstance(compute.op, Attention)
        }


class Rests(NamedTuple):
    """What is left of a body after each of its nodes.

    longest: seconds of the longest row of nodes, each of which waits for the last.
    after: of such a row after a transfer, by name.
    """

    longest: Number
    after: Mapping[str, Number]

    def of_last(self, turns: Mapping[str, Number]) -> Number:
        """Return what is left after the last of transfers in turn, in the order of the body.

        turns: seconds of each; 0 where it does not wait its turn.
        """
        rest: Number = 0.0
        for name, seconds in turns.items():
            rest = where(seconds > 0, self.after.get(name, 0.0), rest)
        return rest


def rests(
    nodes: Sequence[Node], seconds: Mapping[str, Number], loops: Mapping[str, _BodyTotal]
) -> Rests:
    """Return how long a body goes on after each of its nodes, and from its start.

    seconds: of the nodes that take time.
    loops: totals of the loops.

    All begin after the body does, also gathers that wait for nothing. What no other operation of
    the body reads holds up nothing in it, nor do reductions of gradients, which may be read an
    iteration later. Of a loop that reads what a transfer brings, the first iteration may run before
    it has come.
    """
    brought = {key for node in nodes if isinstance(node, CollectiveNode) for key in node.writes}
    after: dict[str, Number] = {}
    following: dict[str, Number] = {}
    longest: Number = 0.0
    for node in reversed(nodes):
        known = [after[key] for key in node.writes if key in after]
        rest: Number = reduce(largest, known) if known else 0.0
        if isinstance(node, CollectiveNode) and (not known or node.purpose is Purpose.GRADIENT):
            continue
        following[node.name] = rest
        is_loop = isinstance(node, LoopNode)
        took = loops[node.name].least if is_loop else seconds.get(node.name, 0.0)
        left = took + rest
        longest = largest(longest, left)
        for key in node.reads:
            own = left
            if isinstance(node, LoopNode) and key in brought:
                own = (1 - 1 / node.scan.trips) * took + rest
            after[key] = largest(after[key], own) if key in after else own
    return Rests(longest, following)


def _summed_gradient(node: Node) -> str:
    """Return the name of the tensor whose gradients of several uses a node adds; else nothing."""
    op = node.op if isinstance(node, ComputeNode) else None
    return op.outputs[0].primal if isinstance(op, Pointwise) and op.linear else ""
