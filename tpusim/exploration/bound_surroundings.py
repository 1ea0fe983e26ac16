"""What the bound of a collective looks at, and what it finds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tpusim.graph import Einsum
from tpusim.hardware import DCN_PREFIX
from tpusim.partition import CollectiveNode, ComputeNode, Node
from tpusim.plan import Axes
from tpusim.program import CollectiveKind, Number, Work

LinkName: TypeAlias = Axes
"""The links of a group within a slice, by its axes; those across slices are `DCN_LINKS`."""

DCN_LINKS: LinkName = (DCN_PREFIX,)


@dataclass(slots=True)
class Transfers:
    """Least seconds of one collective.

    core: that the core waits, or works longer for it.
    alone: from its start to its end.
    links: of links.
    in_turn: `alone`, if it follows other gathers of its body and these follow one another.
    fixed: of `alone`, before bytes count.
    at_once: of its links, if it starts together with the other gathers of its body.
    drained: of a reduction of a gradient, from its start to its end, whatever it is joined with.
    drained_links: of its links, if it is joined with none.
    """

    core: Number = 0.0
    alone: Number = 0.0
    links: dict[LinkName, Number] = field(default_factory=dict)
    in_turn: Number = 0.0
    fixed: Number = 0.0
    at_once: Number = 0.0
    drained: Number = 0.0
    drained_links: Number = 0.0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What stands beside a collective.

    nodes, every: of its body, and the operations among them.
    computes: operations that read what it gathers, or make what it scatters.
    works, seconds: of the operations of its body, by name.
    looped, has_loop: its body is a loop's, or has one.
    """

    nodes: Sequence[Node]
    every: Sequence[ComputeNode]
    computes: Sequence[ComputeNode]
    works: Mapping[str, Work]
    seconds: Mapping[str, Number]
    looped: bool
    has_loop: bool

    @property
    def matmuls(self) -> list[ComputeNode]:
        """The operations, if each can be a ring of matmuls; else none."""
        fine = all(isinstance(c.op, Einsum) and not c.op.ragged for c in self.computes)
        return list(self.computes) if fine else []

    @property
    def is_grouped(self) -> bool:
        """True if a matmul of the body is grouped: no gather runs beside those alone."""
        computes = (each.op for each in self.nodes if isinstance(each, ComputeNode))
        return any(isinstance(op, Einsum) and op.ragged for op in computes)

    def others(self, node: CollectiveNode) -> list[CollectiveNode]:
        """Return the collectives that read what one writes, or write what it reads."""
        moves = (each for each in self.nodes if isinstance(each, CollectiveNode))
        return [
            each
            for each in moves
            if not {*each.writes}.isdisjoint(node.reads)
            or not {*each.reads}.isdisjoint(node.writes)
        ]


def adjoins(node: CollectiveNode, compute: ComputeNode) -> bool:
    """Return True if the operation reads what is gathered, or makes what is scattered."""
    if node.kind is CollectiveKind.ALL_GATHER:
        return node.writes[0] in compute.reads
    return node.maker == compute.op.name
