"""What the bound of a collective looks at, and what it finds."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tpusim.graph import Einsum
from tpusim.hardware import DCN_PREFIX
from tpusim.lowering.collective_choice import CollectiveChoice
from tpusim.lowering.passes.fuse_collectives import can_be_ring
from tpusim.partition import CollectiveNode, ComputeNode, Node, Purpose
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
    merged: that the core waits for the all-reduce that it is merged into, before bytes count; once
        for all over the same axes.
    hidden: of `merged`, behind what other groups send over its links.
    """

    core: Number = 0.0
    alone: Number = 0.0
    links: dict[LinkName, Number] = field(default_factory=dict)
    in_turn: Number = 0.0
    fixed: Number = 0.0
    at_once: Number = 0.0
    drained: Number = 0.0
    drained_links: Number = 0.0
    merged: Number = 0.0
    hidden: Number = 0.0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What stands beside the collectives of a body.

    nodes: of the body.
    computes: its operations, with those that quantise.
    works: of the operations, by name.
    looped, has_loop: the body is a loop's, or has one.
    balanced: devices have parts of causal sequences that see as many keys.
    seconds: of the operations, by name, once they are known.
    """

    nodes: Sequence[Node]
    computes: Sequence[ComputeNode]
    works: Mapping[str, Work]
    looped: bool
    has_loop: bool
    balanced: bool
    seconds: dict[str, Number] = field(default_factory=dict)
    _readers: dict[str, list[ComputeNode]] = field(default_factory=dict, init=False)
    _makers: dict[str, list[ComputeNode]] = field(default_factory=dict, init=False)
    _late: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        for node in self.nodes:
            own = isinstance(node, CollectiveNode) and node.purpose is Purpose.GRADIENT
            if own or not self._late.isdisjoint(node.reads):
                self._late.update(node.writes)
        for compute in self.computes:
            self._makers.setdefault(compute.op.name, []).append(compute)
            for key in dict.fromkeys(compute.reads):
                self._readers.setdefault(key, []).append(compute)

    def beside(self, node: CollectiveNode) -> Sequence[ComputeNode]:
        """Return the operations that read what a collective gathers, or make what it scatters."""
        if node.kind is CollectiveKind.ALL_GATHER:
            return self._readers.get(node.writes[0], ())
        return self._makers.get(node.maker, ())

    def matmuls(self, node: CollectiveNode) -> Sequence[ComputeNode]:
        """Return these operations, if each can be a ring of matmuls; else none."""
        found = self.beside(node)
        return found if all(can_be_ring(each.op) for each in found) else ()

    def choice(self, node: CollectiveNode) -> CollectiveChoice:
        """Return what the way of a collective depends on besides the lowering of its group."""
        made = self._makers.get(node.maker)
        op = made[-1].op if made else None
        return CollectiveChoice.of(
            node, op, beside_loop=self.has_loop, looped=self.looped, balanced=self.balanced
        )

    @property
    def moves(self) -> Iterator[CollectiveNode]:
        """The collectives of the body."""
        return (node for node in self.nodes if isinstance(node, CollectiveNode))

    def is_late(self, node: CollectiveNode) -> bool:
        """Return True if something follows or precedes a reduction of a gradient in another."""
        return not self._late.isdisjoint(node.reads) or bool(self.others(node))

    @property
    def is_grouped(self) -> bool:
        """True if a matmul of the body is grouped: no gather runs beside those alone."""
        return any(isinstance(each.op, Einsum) and each.op.ragged for each in self.computes)

    def others(self, node: CollectiveNode) -> list[CollectiveNode]:
        """Return the collectives that read what one writes, or write what it reads."""
        reads, writes = {*node.reads}, {*node.writes}
        return [
            each
            for each in self.moves
            if not (reads.isdisjoint(each.writes) and writes.isdisjoint(each.reads))
        ]
