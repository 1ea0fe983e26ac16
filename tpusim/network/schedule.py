"""The schedule of a collective: which chunks pass along which chains, in which order."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from tpusim.hardware import Span, Topology
from tpusim.network.algorithm import Algorithm, dimension_sizes
from tpusim.network.chains import (
    Chain,
    Move,
    chain_hops,
    edge_weights,
    move_loads,
    one_chain,
    rows,
)
from tpusim.network.groups import on_torus
from tpusim.network.orbits import orbit_chains
from tpusim.network.paths import Loads
from tpusim.program import CollectiveKind

GATHERS = (CollectiveKind.ALL_GATHER, CollectiveKind.ALL_REDUCE)
SCATTERS = (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE)


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """One move along a chain; `chunk` is bytes, by byte of the collective's tensor."""

    chain: Chain
    move: Move
    chunk: float

    def loads(self) -> Loads:
        """Bytes on each link, by byte of the tensor."""
        return self.chunk * move_loads(self.move, self.chain)

    @property
    def busiest(self) -> float:
        """Bytes on the busiest link."""
        return self.chunk * float(move_loads(self.move, self.chain).max())

    @property
    def hops(self) -> int:
        """Links crossed one after another."""
        return chain_hops(self.move, self.chain)

    @property
    def paths(self) -> tuple[tuple[float, int], ...]:
        """Bytes that pass one after another, and hops between them; the longest path decides.

        One path, unless groups share links. Then messages queue, and while they do, the rest of
        their way hides behind the bytes of others. Where all edges are as long, one hop an edge is
        left; where some are longer, those are always busy, and one hop is left at the end. When
        messages are too small to queue, it is all hops and the bytes of one group.
        """
        alone = self.chunk * max(float(way.max()) for way in edge_weights(self.move, self.chain))
        if self.busiest <= alone or self._in_its_own_way:
            return ((self.busiest, self.hops),)
        lengths = self.chain.edge_hops
        alike = lengths.min() == lengths.max()
        return (self.busiest, self.hops // int(lengths.max()) if alike else 1), (alone, self.hops)

    @property
    def _in_its_own_way(self) -> bool:
        """Whether edges of one group share links, as the way back on a line does with the others.

        Their messages wait for each other at the first link and then pass on together.
        """
        loads = move_loads(self.move, self.chain.first).max()
        return bool(loads > max(way.max() for way in edge_weights(self.move, self.chain)))


_PERMUTES = {
    Algorithm.NEIGHBOURS: Move.SHIFT, Algorithm.HALO: Move.HALO, Algorithm.ONWARD: Move.ONWARD,
}  # fmt: skip

Phase = tuple[Stage, ...]
"""Stages side by side, one a colour; a chip starts the next phase when it has all of this one."""


def schedule(
    kind: CollectiveKind, how: Algorithm, spans: Sequence[Span], topology: Topology
) -> tuple[Phase, ...]:
    """The phases of a collective of the chips that the spans cover; none for an all-to-all.

    On all of k dimensions at once the bytes are split into k colours, which take the dimensions in
    turn so that all links have work: colour c gathers first along dimension c, then along the next
    with what it has, and so on; a reduction goes the same way back. Of the two orders to go round
    three dimensions, the faster is taken. The shares are such that all colours pass as many bytes
    over their busiest links (JAX `rooflines.py` has the same phases).
    """
    spans = on_torus(spans)
    if how is Algorithm.PAIRS or not spans:
        return ()
    if how is Algorithm.ND:
        dims = tuple(dimension_sizes(spans))
        orders = (dims, dims[::-1]) if len(dims) > 2 else (dims,)
        return min((_in_turn(kind, order, spans, topology) for order in orders), key=_path)
    chain = one_chain(spans, topology)
    if kind is CollectiveKind.PERMUTE:
        closed = how is not Algorithm.HALO
        return ((Stage(Chain.of(chain.chips, closed, topology), _PERMUTES[how], 1.0),),)
    if kind is CollectiveKind.BROADCAST:
        return ((Stage(chain, Move.SPREAD, 1.0),),)
    return tuple((stage,) for stage in stages_of(kind, [chain]))


def _in_turn(
    kind: CollectiveKind, dims: tuple[int, ...], spans: tuple[Span, ...], topology: Topology
) -> tuple[Phase, ...]:
    """The phases of colours that each begin with another dimension and go on in this order."""
    turns = [dims[at:] + dims[:at] for at in range(len(dims))]
    return _side_by_side([stages_of(kind, _chains(turn, spans, topology)) for turn in turns])


def _path(phases: Sequence[Phase]) -> float:
    """Bytes that pass one after another, phase by phase."""
    return sum(max(stage.busiest for stage in phase) for phase in phases)


def _chains(turn: Sequence[int], spans: tuple[Span, ...], topology: Topology) -> list[Chain]:
    """The chains along the dimensions in their turn; the rings of a twisted torus lead further."""
    if topology.twisted and prod(span.size for span in spans) == topology.chips:
        return orbit_chains(turn, topology)
    return [rows(dim, spans, topology) for dim in turn]


def stages_of(kind: CollectiveKind, chains: Sequence[Chain]) -> list[Stage]:
    """The stages of a colour that has all bytes: a gather's chunks grow from chain to chain."""
    sizes = [1 / prod(later.chunks for later in chains[at:]) for at in range(len(chains))]
    growing = list(zip(chains, sizes, strict=True))
    gathers = [Stage(chain, Move.GATHER, size) for chain, size in growing]
    scatters = [Stage(chain, Move.SCATTER, size) for chain, size in reversed(growing)]
    return (scatters if kind in SCATTERS else []) + (gathers if kind in GATHERS else [])


def _side_by_side(colours: Sequence[Sequence[Stage]]) -> tuple[Phase, ...]:
    """The phases of colours that share the bytes such that each spends as long on its links."""
    speeds = [1 / sum(stage.busiest for stage in stages) for stages in colours]
    parts = [speed / sum(speeds) for speed in speeds]
    return tuple(
        tuple(
            replace(stage, chunk=part * stage.chunk)
            for part, stage in zip(parts, phase, strict=True)
        )
        for phase in zip(*colours, strict=True)
    )
