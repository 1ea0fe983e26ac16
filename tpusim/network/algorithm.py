"""The algorithms that carry out collectives, and the choice among them.

Each is one `CollectiveAlgorithm`. `register_algorithm` adds another one, which costs, the
hop-by-hop network, programs that name it and `collectives = "best"` then use like those built in.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from math import prod
from typing import TypeAlias

from tpusim.base.errors import PlanError, nearest
from tpusim.hardware import Span, Topology
from tpusim.network.at_once import EXCHANGE, IN_MESH_ORDER, SentAtOnce
from tpusim.network.chains import ChainMove
from tpusim.network.groups import dimension_sizes, merged, on_torus
from tpusim.network.schedule import (
    SchedulePhase,
    chain_phases,
    chain_text,
    dimension_phases,
    dimension_text,
    permute_phases,
)
from tpusim.program import CollectiveKind

Spans: TypeAlias = Sequence[Span]


def always_default(kind: CollectiveKind, spans: Spans, topology: Topology) -> bool:
    """Return True: the compiler picks the algorithm where no other claims the group."""
    return True


def never_default(kind: CollectiveKind, spans: Spans, topology: Topology) -> bool:
    """Return False: the compiler never picks the algorithm by itself."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveAlgorithm:
    """One method of carrying out collectives on the torus.

    name: as written in programs and lowerings.
    kinds: the collectives that it can carry out.
    phases: its schedule among the groups that spans on the torus make; None if all messages are
        sent at once.
    at_once: the messages, where there is no schedule.
    is_default: returns True if the TPU compiler picks it for a group. If several algorithms claim a
        group, the one registered last is picked.
    covers_dimensions: `is_default` holds for groups of several whole dimensions alone. Many groups
        at a time are then not asked (`bounds.footprints`).
    in_best: `collectives = "best"` considers it.
    runs_as: the collective that replaces the requested one, with its own default algorithm.
    adds_after: reductions are added up when a phase's bytes have arrived, not in transit.
    text: describes the phases in words, as `describe` does; its name is used without it.
    """

    name: str
    kinds: tuple[CollectiveKind, ...]
    phases: Callable[[CollectiveKind, Spans, Topology], tuple[SchedulePhase, ...]] | None
    at_once: SentAtOnce = EXCHANGE
    is_default: Callable[[CollectiveKind, Spans, Topology], bool] = never_default
    covers_dimensions: bool = False
    in_best: bool = True
    runs_as: CollectiveKind | None = None
    adds_after: bool = False
    text: Callable[[Sequence[SchedulePhase]], str] | None = None

    @property
    def halved(self) -> bool:
        """True if each of a chip's two devices sends half of the bytes over their links."""
        return self.phases is not None or self.at_once.halved

    def describe(self, phases: Sequence[SchedulePhase]) -> str:
        """Return the phases in words; `{}` stands for the names of the dimensions."""
        return self.text(phases) if self.text else f"{self.name} through {{}}"


class Algorithm(StrEnum):
    """The names of the built-in algorithms.

    ring: one chain through the whole group, even if it covers several dimensions.
    nd: all dimensions of the group at once.
    all-reduce: a gather or a reduce-scatter done as an all-reduce of a padded or unsliced buffer,
        twice the bytes.
    pairs: every device to every other.
    neighbours: to both neighbours on the chain.
    halo: like neighbours, but not from end to end.
    onward: to the next device of the chain, in one direction only.
    step: like onward, but not from end to end.
    mirror: to the device as far from the other end of the chain.
    mesh order: to the next and to the previous device in the order of the mesh.
    """

    RING = "ring"
    ND = "nd"
    ALL_REDUCE = "all-reduce"
    PAIRS = "pairs"
    NEIGHBOURS = "neighbours"
    HALO = "halo"
    ONWARD = "onward"
    STEP = "step"
    MIRROR = "mirror"
    MESH_ORDER = "mesh order"


FLAT = " flat"
"""After an algorithm: each of a chip's two devices moves all bytes itself, as if it were alone."""

MAX_HALO_DISTANCE = 8
"""The farthest device of a chain that a halo or a step may be sent to."""

NARROW_SIDE = 2
"""Chips along the shorter dimension of a slice that is all-reduced as one ring."""

MIN_CUBE_SIDE = 4
"""The least chips along each of three dimensions for a gather to use all of them at once."""


def _covers_dimensions(spans: Spans, topology: Topology) -> bool:
    """Return True if a group covers several dimensions of the torus, and each of them whole."""
    sizes = dimension_sizes(spans)
    return len(sizes) > 1 and all(size == topology.dims[dim] for dim, size in sizes.items())


def _covers_slice(spans: Spans, topology: Topology) -> bool:
    whole = prod(dimension_sizes(spans).values()) == topology.chips
    return whole and _covers_dimensions(spans, topology)


def _all_reduces_by_default(kind: CollectiveKind, spans: Spans, topology: Topology) -> bool:
    """Return True for reduce-scatters over a whole slice of several dimensions (16x16, 4x4x4)."""
    return kind is CollectiveKind.REDUCE_SCATTER and _covers_slice(spans, topology)


def _uses_all_dimensions(kind: CollectiveKind, spans: Spans, topology: Topology) -> bool:
    """Return True for all-reduces over whole dimensions, and for gathers over a whole cube.

    All-reduces use every dimension of the group (16 of 4x4x4, 256 of 8x16x16), but one ring if it
    covers only part of one (4 x 16 of 16x16). A whole slice is gathered on all dimensions if they
    are three of `MIN_CUBE_SIDE` or more (4x4x4), else as one ring: the gathers of weights in 30
    programs for 2x4, 4x4 and 16x16 of v5e and v6e and for v5p 2x2x4, with libtpu 0.0.11.1 as well
    (on 2x2, where some are not, both take as long).

    A slice of 2 x n is all-reduced as one ring: 8 and 32 MiB on 2x2 and 2x4 of v6e and on 2x4 of
    v5e, and the gradients of a model on v6e 2x4 (libtpu 0.0.42.1); on 4x4 of v6e they are not.
    """
    if kind is CollectiveKind.ALL_REDUCE:
        narrow = len(topology.dims) == 2 and min(topology.dims) == NARROW_SIDE
        return _covers_dimensions(spans, topology) and not narrow
    cube = len(topology.dims) == 3 and min(topology.dims) >= MIN_CUBE_SIDE
    return cube and kind is CollectiveKind.ALL_GATHER and _covers_slice(spans, topology)


def at_distance(algorithm: Algorithm, distance: int) -> str:
    """Return the name of a halo or a step to the device at a distance: `halo`, `halo 2`."""
    return f"{algorithm} {distance}" if distance > 1 else str(algorithm)


def _open_permute(
    algorithm: Algorithm, move: ChainMove, start: str, distance: int
) -> CollectiveAlgorithm:
    """Return a permute that is not closed from end to end."""
    return CollectiveAlgorithm(
        name=at_distance(algorithm, distance),
        kinds=(CollectiveKind.PERMUTE,),
        phases=partial(permute_phases, move, distance=distance),
        in_best=distance == 1,
        text=partial(chain_text, start=f"{start} {distance} away" if distance > 1 else start),
    )


_OPEN_PERMUTES = (
    (Algorithm.HALO, ChainMove.HALO, "neighbours on a"),
    (Algorithm.STEP, ChainMove.STEP, "the next on a"),
)
_HALVES_OF_ALL_REDUCE = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
_BUILT_IN = (
    CollectiveAlgorithm(
        name=Algorithm.RING,
        kinds=(*_HALVES_OF_ALL_REDUCE, CollectiveKind.ALL_REDUCE, CollectiveKind.BROADCAST),
        phases=chain_phases,
        is_default=always_default,
        text=chain_text,
    ),
    CollectiveAlgorithm(
        name=Algorithm.ND,
        kinds=(*_HALVES_OF_ALL_REDUCE, CollectiveKind.ALL_REDUCE),
        phases=dimension_phases,
        is_default=_uses_all_dimensions,
        covers_dimensions=True,
        adds_after=True,
        text=dimension_text,
    ),
    CollectiveAlgorithm(
        name=Algorithm.ALL_REDUCE,
        kinds=_HALVES_OF_ALL_REDUCE,
        phases=chain_phases,
        is_default=_all_reduces_by_default,
        covers_dimensions=True,
        runs_as=CollectiveKind.ALL_REDUCE,
    ),
    CollectiveAlgorithm(
        name=Algorithm.PAIRS,
        kinds=(CollectiveKind.ALL_TO_ALL,),
        phases=None,
        is_default=always_default,
    ),
    CollectiveAlgorithm(
        name=Algorithm.NEIGHBOURS,
        kinds=(CollectiveKind.PERMUTE,),
        phases=partial(permute_phases, ChainMove.SHIFT),
        is_default=always_default,
        text=partial(chain_text, start="neighbours on a"),
    ),
    CollectiveAlgorithm(
        name=Algorithm.ONWARD,
        kinds=(CollectiveKind.PERMUTE,),
        phases=partial(permute_phases, ChainMove.ONWARD),
        text=partial(chain_text, start="onward on a"),
    ),
    CollectiveAlgorithm(
        name=Algorithm.MIRROR,
        kinds=(CollectiveKind.PERMUTE,),
        phases=partial(permute_phases, ChainMove.MIRROR),
        in_best=False,
        text=partial(chain_text, start="mirrored on a"),
    ),
    CollectiveAlgorithm(
        name=Algorithm.MESH_ORDER,
        kinds=(CollectiveKind.PERMUTE,),
        phases=None,
        at_once=IN_MESH_ORDER,
        in_best=False,
    ),
    *(
        _open_permute(*each, distance)
        for each in _OPEN_PERMUTES
        for distance in range(1, MAX_HALO_DISTANCE + 1)
    ),
)
ALGORITHMS: dict[str, CollectiveAlgorithm] = {each.name: each for each in _BUILT_IN}
"""All algorithms by name, in the order of registration."""


def register_algorithm(algorithm: CollectiveAlgorithm) -> CollectiveAlgorithm:
    """Add an algorithm for collectives of this process, and return it.

    Raise ValueError if its name is taken.
    """
    if algorithm.name in ALGORITHMS:
        raise ValueError(f"the algorithm '{algorithm.name}' is registered already")
    ALGORITHMS[algorithm.name] = algorithm
    return algorithm


def algorithms_for(kind: CollectiveKind) -> tuple[CollectiveAlgorithm, ...]:
    """Return the algorithms that can carry out a collective, in the order of registration."""
    return tuple(each for each in ALGORITHMS.values() if kind in each.kinds)


def default_algorithm(kind: CollectiveKind, spans: Spans, topology: Topology) -> str:
    """Return the name of the algorithm that the TPU compiler picks for the group.

    Observed in compiled programs, libtpu 0.0.42.1; gathers and reduce-scatters of a group that
    covers a plane of a larger torus run as one ring, and see `is_default` of the other algorithms.
    """
    claims = reversed(algorithms_for(kind))
    return next(each.name for each in claims if each.is_default(kind, spans, topology))


def is_flat(requested: str) -> bool:
    """Return True if each of a chip's two devices is to move all bytes itself."""
    return requested == FLAT.strip() or requested.endswith(FLAT)


def resolve_algorithm(
    kind: CollectiveKind, spans: Spans, topology: Topology, requested: str
) -> str:
    """Return the name of the requested algorithm without " flat", or the default for an empty one.

    Raise PlanError for an algorithm that cannot carry out the kind.
    """
    name = requested.removesuffix("flat").rstrip() if is_flat(requested) else requested
    if not name:
        return default_algorithm(kind, spans, topology)
    names = [each.name for each in algorithms_for(kind)]
    if name not in names:
        near = nearest(requested, names)
        raise PlanError(f"algorithm {requested!r} cannot carry out {kind}; {near}")
    return name


def schedule(
    kind: CollectiveKind, name: str, spans: Spans, topology: Topology
) -> tuple[SchedulePhase, ...]:
    """Return the phases of a collective; none for a group of one chip and for an all-to-all."""
    phases, spans = ALGORITHMS[name].phases, merged(on_torus(spans))
    return phases(kind, spans, topology) if phases and spans else ()
