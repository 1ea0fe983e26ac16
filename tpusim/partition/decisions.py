"""What decides how the collectives of a body run: the lowering of each group, and who uses what."""

from collections.abc import Sequence

from tpusim.hardware import Placement, Slice
from tpusim.partition.groups import group_of
from tpusim.partition.layout import Axes
from tpusim.partition.lowering import Group, Lowering, in_trips, lowering_for
from tpusim.partition.passes import Planned
from tpusim.partition.plan import Plan
from tpusim.partition.sizes import Sizes
from tpusim.partition.template import Calc, Comm, Nest, Node, Template
from tpusim.partition.travel import reduced_in
from tpusim.program import CollectiveKind

REDUCTIONS = (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE)

_CHOSEN = (
    CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE,
)  # fmt: skip
"""The collectives that several algorithms can carry out."""


class Decisions:
    """The lowering of one plan on one slice, for all bodies of its structure.

    trips: whether they are those of a circular pipeline.
    """

    def __init__(
        self, template: Template, sizes: Sizes, plan: Plan, pod: Slice, placement: Placement,
        trips: bool = False,
    ) -> None:  # fmt: skip
        self.sizes = sizes
        self.buffers = reduced_in(plan, template.buffers)
        self.weights = frozenset(weight.name for weight in template.weights)
        self.plan = plan
        self.pod = pod
        self.placement = placement
        self.trips = trips and plan.lowering != "ideal"
        self._groups: dict[Axes, tuple[Group, Lowering]] = {}

    def over(self, axes: Axes) -> tuple[Group, Lowering]:
        """The group of a collective over `axes`, and the lowering of such collectives."""
        if axes not in self._groups:
            group = group_of(axes, self.pod, self.placement)
            generation, plan = self.pod.chip.generation, self.plan
            low = lowering_for(plan.lowering, generation, plan.style, group)
            self._groups[axes] = (group, in_trips(low) if self.trips else low)
        return self._groups[axes]

    def algorithm(self, planned: Planned) -> str:
        """The algorithm of a collective: the lowering's, or `best` where the plan asks for that."""
        if self.plan.collectives == "best" and planned.comms[0].kind in _CHOSEN:
            return "best"
        return planned.algorithm


class BodyNodes:
    """The nodes of one body, that of a loop where `looped`: its collectives, and who makes what."""

    def __init__(self, decisions: Decisions, nodes: Sequence[Node], looped: bool) -> None:
        self.decisions = decisions
        self.nodes = nodes
        self.looped = looped
        self.comms = [node for node in nodes if isinstance(node, Comm)]
        self.calcs = [node for node in nodes if isinstance(node, Calc)]
        self.makers = {node.op.name: node for node in self.calcs}
        self.has_loop = any(isinstance(node, Nest) for node in nodes)

    def bytes(self, comm: Comm) -> float:
        """Bytes of the full tensor on one device."""
        return float(self.decisions.sizes.nbytes(comm.payload, comm.dtype))
