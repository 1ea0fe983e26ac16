"""Schedules of collectives: the chunks that pass along chains, phase by phase."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from tpusim.hardware import Span, Topology
from tpusim.network.chains import (
    Chain,
    ChainMove,
    busiest_load,
    chain_hops,
    dimension_chain,
    edge_weights,
    move_loads,
    one_chain,
)
from tpusim.network.groups import Chips, dimension_sizes
from tpusim.network.paths import Loads
from tpusim.program import CollectiveKind

GATHERS = (CollectiveKind.ALL_GATHER, CollectiveKind.ALL_REDUCE)
SCATTERS = (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE)


@dataclass(frozen=True, slots=True, eq=False)
class ScheduleStage:
    """One move along a chain; `chunk` is bytes, by byte of the collective's tensor."""

    chain: Chain
    move: ChainMove
    chunk: float

    def loads(self) -> Loads:
        """Return the bytes on each link, by byte of the tensor."""
        return self.chunk * move_loads(self.move, self.chain)

    @property
    def busiest(self) -> float:
        """Bytes on the busiest link."""
        return self.chunk * busiest_load(self.move, self.chain)

    @property
    def hops(self) -> int:
        """Links crossed one after another."""
        return chain_hops(self.move, self.chain)

    @property
    def paths(self) -> tuple[tuple[float, int], ...]:
        """Bytes that pass one after another, and hops between them; the longest path decides.

        One path, unless groups share links. Then messages queue, and the rest of their path hides
        behind the bytes of others. If all edges are equally long, one hop per edge is left; if some
        are longer, those are always busy, and one hop is left at the end. If messages are too small
        to queue, it is all hops and the bytes of one group.
        """
        alone = self.chunk * max(float(side.max()) for side in edge_weights(self.move, self.chain))
        if self.busiest <= alone or self._shares_own_links:
            return ((self.busiest, self.hops),)
        lengths = self.chain.edge_hops
        alike = lengths.min() == lengths.max()
        return (self.busiest, self.hops // int(lengths.max()) if alike else 1), (alone, self.hops)

    @property
    def _shares_own_links(self) -> bool:
        """True if edges of one group share links, as a line's closing edge does with the others.

        Their messages wait for each other at the first link and then pass on together.
        """
        load = busiest_load(self.move, self.chain, alone=True)
        return bool(load > max(side.max() for side in edge_weights(self.move, self.chain)))


SchedulePhase = tuple[ScheduleStage, ...]
"""Stages side by side, one per colour; a chip starts the next phase when it has all of this one."""


def chain_phases(
    kind: CollectiveKind, spans: Sequence[Span], topology: Topology
) -> tuple[SchedulePhase, ...]:
    """Return the phases on one chain through the whole group."""
    chain = one_chain(tuple(spans), topology)
    if kind is CollectiveKind.BROADCAST:
        return ((ScheduleStage(chain, ChainMove.SPREAD, 1.0),),)
    return tuple((stage,) for stage in stages_of(kind, [chain]))


def permute_phases(
    move: ChainMove,
    kind: CollectiveKind,
    spans: Sequence[Span],
    topology: Topology,
    distance: int = 1,
) -> tuple[SchedulePhase, ...]:
    """Return the phases of a permute along the chain through the group; halos and steps are open.

    distance: of the device that it sends to. All send at once, so each link carries as many
        messages, as if they were passed on from neighbour to neighbour.
    """
    found = one_chain(tuple(spans), topology)
    chain = found.passed_on(closed=move not in (ChainMove.HALO, ChainMove.STEP))
    return ((ScheduleStage(chain, move, 1.0),),) * distance


def dimension_phases(
    kind: CollectiveKind, spans: Sequence[Span], topology: Topology
) -> tuple[SchedulePhase, ...]:
    """Return the phases on all dimensions of the group at once.

    On k dimensions the bytes are split into k colours, which take the dimensions in turn so that
    all links have work: colour c gathers first along dimension c, then along the next with what it
    has, and so on; a reduction takes them in reverse. Of the two directions round three dimensions,
    the faster is taken. The shares are such that all colours pass equally many bytes over their
    busiest links (JAX `rooflines.py` has the same phases).
    """
    dims = tuple(dimension_sizes(spans))
    orders = (dims, dims[::-1]) if len(dims) > 2 else (dims,)
    return min((_in_turn(kind, order, tuple(spans), topology) for order in orders), key=_path)


def chain_text(phases: Sequence[SchedulePhase], start: str = "one") -> str:
    """Describe phases on one chain; `{}` stands for the names of the dimensions."""
    chain = phases[0][0].chain
    shape = "ring" if chain.closed else "line"
    return f"{start} {shape} of {chain.length} through {{}}"


def dimension_text(phases: Sequence[SchedulePhase]) -> str:
    """Describe phases of several colours."""
    colours = len(phases[0])
    return f"all of {{}} at once, {colours} colours" if colours > 1 else chain_text(phases)


def _in_turn(
    kind: CollectiveKind, dims: tuple[int, ...], spans: tuple[Span, ...], topology: Topology
) -> tuple[SchedulePhase, ...]:
    """Return the phases of colours that begin with different dimensions of this order."""
    turns = [dims[at:] + dims[:at] for at in range(len(dims))]
    return _side_by_side([stages_of(kind, _chains(turn, spans, topology)) for turn in turns])


def _path(phases: Sequence[SchedulePhase]) -> float:
    """Return the bytes that pass one after another, phase by phase."""
    return sum(max(stage.busiest for stage in phase) for phase in phases)


def _chains(turn: Sequence[int], spans: tuple[Span, ...], topology: Topology) -> list[Chain]:
    """Return the chains along the dimensions in turn; rings of a twisted torus extend further."""
    if topology.twisted and prod(span.size for span in spans) == topology.chips:
        return orbit_chains(turn, topology)
    return [dimension_chain(dim, spans, topology) for dim in turn]


def stages_of(kind: CollectiveKind, chains: Sequence[Chain]) -> list[ScheduleStage]:
    """Return the stages of a colour with all bytes: a gather's chunks grow from chain to chain."""
    sizes = [1 / prod(later.chunks for later in chains[at:]) for at in range(len(chains))]
    growing = list(zip(chains, sizes, strict=True))
    gathers = [ScheduleStage(chain, ChainMove.GATHER, size) for chain, size in growing]
    scatters = [ScheduleStage(chain, ChainMove.SCATTER, size) for chain, size in reversed(growing)]
    return (scatters if kind in SCATTERS else []) + (gathers if kind in GATHERS else [])


def _side_by_side(colours: Sequence[Sequence[ScheduleStage]]) -> tuple[SchedulePhase, ...]:
    """Return the phases of colours whose shares of the bytes take equal time on their links."""
    speeds = [1 / sum(stage.busiest for stage in stages) for stages in colours]
    parts = [speed / sum(speeds) for speed in speeds]
    return tuple(
        tuple(
            replace(stage, chunk=part * stage.chunk)
            for part, stage in zip(parts, phase, strict=True)
        )
        for phase in zip(*colours, strict=True)
    )


ChipPlace = tuple[int, ...]


def orbit_chains(order: Sequence[int], topology: Topology) -> list[Chain]:
    """Return the chains of a gather over a whole twisted torus along the dimensions in this order.

    On n x n x 2n, the ring along a short dimension passes the wrap, comes back shifted by half of
    the long dimension, and closes only after 2n chips. So the rings of different dimensions meet in
    more than one chip: once data is gathered along one, chips half a ring apart of the next hold
    the same, and only part of it has to be passed on. Counted from the coordinates, as cosets of
    the group that steps along dimensions generate.

    The chain of a dimension is a ring of all chips that following it visits; `distinct` of them
    hold different data when all dimensions before have been gathered. Their product is the torus.
    """
    held = {(0,) * len(topology.dims)}
    chains = []
    for dim in order:
        ring = _orbit((0,) * len(topology.dims), dim, topology)
        distinct = next(at for at in range(1, len(ring) + 1) if ring[at % len(ring)] in held)
        held = {place for start in held for place in _orbit(start, dim, topology)[:distinct]}
        chains.append(_rings(dim, distinct, topology))
    return chains


def _orbit(start: ChipPlace, dim: int, topology: Topology) -> list[ChipPlace]:
    """Return the chips from `start` along a dimension, until it comes back."""
    places = [start]
    while (following := topology.neighbour(places[-1], dim, 1)) not in (start, None):
        places.append(following)
    return places


def _rings(dim: int, distinct: int, topology: Topology) -> Chain:
    """Return the chain of all rings along a dimension."""
    left = dict.fromkeys(np.ndindex(*topology.dims))
    rings = []
    while left:
        rings.append(_orbit(next(iter(left)), dim, topology))
        for place in rings[-1]:
            del left[place]
    chips: Chips = np.array(rings, dtype=np.intp)
    moves = np.zeros_like(chips)
    moves[..., dim] = 1
    return Chain(chips, True, topology, moves, -moves, distinct)
