"""Inputs of every lowering decision: the lowering of each device group, the nodes of a body."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from tpusim.graph import is_sequence
from tpusim.hardware import Place, Placement, Slice
from tpusim.lowering.collective_lowering import Lowering
from tpusim.lowering.collectives_by_generation import (
    in_circular_pipeline,
    lowering_for,
    permutes_wait,
)
from tpusim.lowering.device_groups import DeviceGroup, group_of
from tpusim.lowering.op_work import buffer_bytes, collective_bytes
from tpusim.lowering.passes.transfer_dtypes import reduced_in
from tpusim.partition import (
    Buffer,
    CollectiveNode,
    ComputeNode,
    LoopNode,
    Node,
    PartitionedGraph,
    Purpose,
    Sizes,
    across_slices,
    is_across,
    weights_are_tiled,
    within_slice,
)
from tpusim.plan import Axes, Compiler, Plan
from tpusim.program import CollectiveKind, Mode, as_float
from tpusim.tape import Answer, tape_of, untraced

REDUCTIONS = (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE)
"""Kinds of collectives that add up."""

_EXPERT = "expert"
"""The dimension of experts."""


class LoweringDecisions:
    """The lowering of one plan on one slice, for all bodies of its partitioned graph.

    circular: True if the bodies are those of a circular pipeline's loop.

    Its `permutes` is the mode of permutes beside the work of a ring.
    """

    def __init__(
        self,
        partitioned: PartitionedGraph,
        sizes: Sizes,
        plan: Plan,
        pod: Slice,
        placement: Placement,
        circular: bool = False,
    ) -> None:
        self.sizes = sizes
        self.buffers = reduced_in(plan.dtypes, partitioned.buffers)
        self.weights = frozenset(weight.name for weight in partitioned.weights)
        self.plan = plan
        self.pod = pod
        self.placement = placement
        self.ideal = plan.compiler.lowering == "ideal"
        waits = permutes_wait(pod.chip.generation, plan.compiler, pod.topology.chips)
        self.permutes = Mode.SYNC if waits else Mode.RING
        self._circular = circular and not self.ideal
        self._groups: dict[tuple[Axes, bool], tuple[DeviceGroup, Lowering]] = {}

    def over(self, axes: Axes) -> tuple[DeviceGroup, Lowering]:
        """Return the group of a collective over `axes`, and its lowering."""
        return self._over(axes, weights_are_tiled(self.plan, axes))

    def alone(self, collective: CollectiveNode) -> Lowering:
        """Return the lowering of a collective that no matmul takes in.

        That of the weights of sharded experts is the one of groups without rings: their tokens are
        exchanged beside them (layers of experts on v6e 4x4 and 16x16, libtpu 0.0.42.1).
        """
        of_experts = bool(collective.payload.split().get(_EXPERT))
        tiled = weights_are_tiled(self.plan, collective.axes)
        return self._over(collective.axes, tiled and not of_experts)[1]

    def _over(self, axes: Axes, tiled: bool) -> tuple[DeviceGroup, Lowering]:
        if (axes, tiled) not in self._groups:
            group, low = lowering_over(axes, self.plan, self.sizes, self.pod, self.placement, tiled)
            chosen = in_circular_pipeline(low) if self._circular else low
            self._groups[axes, tiled] = (group, chosen)
        return self._groups[axes, tiled]


def lowering_over(
    axes: Axes, plan: Plan, sizes: Sizes, pod: Slice, placement: Placement, tiled: bool
) -> tuple[DeviceGroup, Lowering]:
    """Return the group of a collective over `axes`, and its lowering.

    tiled: see `DeviceGroup`.
    """
    place = Place(pod, placement, {axis: untraced(size) for axis, size in sizes.axes.items()})
    question = GroupQuestion(axes, tiled, plan.compiler)
    group, low = question.lowering(place)
    tape = tape_of(sizes.axes.values())
    return (group if tape is None else group.with_numbers(tape.ask(question, place))), low


@dataclass(frozen=True, slots=True)
class GroupQuestion:
    """The lowering of the collectives over one group."""

    axes: Axes
    tiled: bool
    compiler: Compiler

    def lowering(self, place: Place) -> tuple[DeviceGroup, Lowering]:
        """Return the group in a place, and its lowering."""
        spanned = prod(place.sizes[axis] for axis in across_slices(self.axes))
        group = group_of(self.axes, place.pod, place.placement, self.tiled, spanned)
        return group, lowering_for(place.pod.chip.generation, self.compiler, group)

    def answer(self, place: Place) -> Answer:
        """Return the lowering, and the group's numbers."""
        group, low = self.lowering(place)
        return Answer(low, group.numbers)


class Body:
    """One body between two passes: its nodes so far, and the inputs of decisions about them.

    name: of the loop, or `step`.
    looped: True if it is the body of a loop.
    """

    def __init__(
        self, decisions: LoweringDecisions, nodes: Sequence[Node], name: str, looped: bool
    ) -> None:
        self.decisions = decisions
        self.nodes = nodes
        self.name = name
        self.looped = looped

    @property
    def plan(self) -> Plan:
        """The plan."""
        return self.decisions.plan

    @property
    def weights(self) -> frozenset[str]:
        """Names of the model's weights."""
        return self.decisions.weights

    @property
    def buffers(self) -> dict[str, Buffer]:
        """Buffers of all bodies; a pass adds those that it introduces."""
        return self.decisions.buffers

    @cached_property
    def collectives(self) -> list[CollectiveNode]:
        """The collectives, in order."""
        return [node for node in self.nodes if isinstance(node, CollectiveNode)]

    @cached_property
    def computes(self) -> list[ComputeNode]:
        """The compute nodes, in order."""
        return [node for node in self.nodes if isinstance(node, ComputeNode)]

    @cached_property
    def makers(self) -> dict[str, ComputeNode]:
        """The compute nodes by the name of their operation."""
        return {node.op.name: node for node in self.computes}

    @cached_property
    def moved_activations(self) -> tuple[frozenset[str], frozenset[str]]:
        """Buffers that gathers of activations write, and the operations whose results are summed.

        A matmul that reads one of the former, or is one of the latter, has a collective already. An
        all-to-all is none: the matmul does not read more than its device's part, nor is a halo.
        Gathers of tokens are left out.
        """
        moves = [
            c
            for c in self.collectives
            if c.purpose not in (Purpose.WEIGHT, Purpose.GRADIENT)
            and c.kind not in (CollectiveKind.ALL_TO_ALL, CollectiveKind.PERMUTE)
        ]
        written = frozenset(c.writes[0] for c in moves if not is_sequence(c.dim))
        return written, frozenset(c.maker for c in moves)

    @cached_property
    def crossing(self) -> dict[CollectiveNode, CollectiveNode]:
        """The collectives of weights and gradients within the slice that one across slices adjoins.

        Each is given with that other, which makes its operand or reads its result.
        """
        across = [c for c in self.collectives if is_across(c.axes)]
        gathered = {c.writes[0]: c for c in across if c.kind is CollectiveKind.ALL_GATHER}
        summed = {c.reads[0]: c for c in across if c.kind in REDUCTIONS}
        found = {}
        for each in self.collectives:
            if each.purpose is Purpose.WEIGHT and each.kind is CollectiveKind.ALL_GATHER:
                other = gathered.get(each.reads[0])
            elif each.purpose is Purpose.GRADIENT and each.kind is CollectiveKind.REDUCE_SCATTER:
                other = summed.get(each.writes[0])
            else:
                continue
            if other is not None:
                found[each] = other
        return found

    @cached_property
    def has_loop(self) -> bool:
        """True if the body contains a loop."""
        return any(isinstance(node, LoopNode) for node in self.nodes)

    @cached_property
    def lowerings(self) -> list[Lowering]:
        """The lowerings of its collectives, of those within a slice where there are any."""
        axes = {collective.axes for collective in self.collectives}
        return [self.decisions.over(each)[1] for each in set(filter(within_slice, axes)) or axes]

    def nbytes(self, collective: CollectiveNode) -> float:
        """Return the bytes of the full tensor on one device."""
        return as_float(collective_bytes(collective, self.decisions.sizes))

    def buffer_bytes(self, key: str) -> float:
        """Return the bytes of a buffer on one device."""
        return as_float(buffer_bytes(self.buffers[key], self.decisions.sizes))
