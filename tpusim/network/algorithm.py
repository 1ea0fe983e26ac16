"""Which algorithm carries out a collective."""

from collections.abc import Sequence
from enum import StrEnum
from math import prod

from tpusim.errors import PlanError, nearest
from tpusim.hardware import Span, Topology
from tpusim.network.groups import on_torus
from tpusim.program import CollectiveKind


class Algorithm(StrEnum):
    """How a collective uses the torus.

    ring: one chain through the whole group, even where it covers several dimensions. nd: all
    dimensions of the group at once. all-reduce: a gather or a reduce-scatter done as an all-reduce
    of a padded or unsliced buffer, twice the bytes. pairs: every device to every other. neighbours:
    to the next of the chain, both ways; halo: likewise, but not from end to end. onward: to the
    next of the chain, one way only.
    """

    RING = "ring"
    ND = "nd"
    ALL_REDUCE = "all-reduce"
    PAIRS = "pairs"
    NEIGHBOURS = "neighbours"
    HALO = "halo"
    ONWARD = "onward"


CHOICES = {
    CollectiveKind.ALL_GATHER: (Algorithm.RING, Algorithm.ND, Algorithm.ALL_REDUCE),
    CollectiveKind.REDUCE_SCATTER: (Algorithm.RING, Algorithm.ND, Algorithm.ALL_REDUCE),
    CollectiveKind.ALL_REDUCE: (Algorithm.RING, Algorithm.ND),
    CollectiveKind.ALL_TO_ALL: (Algorithm.PAIRS,),
    CollectiveKind.PERMUTE: (Algorithm.NEIGHBOURS, Algorithm.HALO, Algorithm.ONWARD),
    CollectiveKind.BROADCAST: (Algorithm.RING,),
}
CUBE = 4
"""Devices along each of three dimensions from which on a gather takes all of them at once."""

FLAT = " flat"
"""After an algorithm: each of a chip's two devices moves all bytes itself, as if it were alone."""


def default_algorithm(kind: CollectiveKind, spans: Sequence[Span], topology: Topology) -> Algorithm:
    """The algorithm that the TPU compiler picks for the group.

    Observed in compiled programs, libtpu 0.0.42.1: gathers and reduce-scatters of a group that
    covers a plane of a larger torus run as one ring; all-reduces use every dimension of the group
    (16 of 4x4x4, 256 of 8x16x16), but one ring where it covers only part of one (4 x 16 of 16x16).
    A whole slice of several dimensions is reduce-scattered by an all-reduce (16x16, 4x4x4). It is
    gathered on all of them where they are three of `CUBE` or more (4x4x4), else as one ring: the
    gathers of weights in 30 programs for 2x4, 4x4 and 16x16 of v5e and v6e and for v5p 2x2x4, with
    libtpu 0.0.11.1 as well (on 2x2, where some are not, both take as long).
    """
    if kind in (CollectiveKind.ALL_TO_ALL, CollectiveKind.PERMUTE, CollectiveKind.BROADCAST):
        return CHOICES[kind][0]
    sizes = dimension_sizes(spans)
    if len(sizes) < 2 or any(size < topology.dims[dim] for dim, size in sizes.items()):
        return Algorithm.RING
    if kind is CollectiveKind.ALL_REDUCE:
        return Algorithm.ND
    if prod(sizes.values()) < topology.chips:
        return Algorithm.RING
    if kind is not CollectiveKind.ALL_GATHER:
        return Algorithm.ALL_REDUCE
    cube = len(sizes) == len(topology.dims) == 3 and min(sizes.values()) >= CUBE
    return Algorithm.ND if cube else Algorithm.RING


def dimension_sizes(spans: Sequence[Span]) -> dict[int, int]:
    """How many chips a group has along each dimension of the torus that it covers."""
    sizes: dict[int, int] = {}
    for span in on_torus(spans):
        sizes[span.dim] = sizes.get(span.dim, 1) * span.size
    return dict(sorted(sizes.items()))


def is_flat(asked: str) -> bool:
    """Whether each of a chip's two devices shall move all bytes itself."""
    return asked == FLAT.strip() or asked.endswith(FLAT)


def algorithm(
    kind: CollectiveKind, spans: Sequence[Span], topology: Topology, asked: str
) -> Algorithm:
    """The algorithm asked for, or the default where `asked` is empty; " flat" is left out.

    Raises PlanError for one that the kind cannot use.
    """
    name = asked.removesuffix("flat").rstrip() if is_flat(asked) else asked
    if not name:
        return default_algorithm(kind, spans, topology)
    choices = CHOICES[kind]
    if name not in choices:
        raise PlanError(f"algorithm {asked!r} cannot carry out {kind}; {nearest(asked, choices)}")
    return Algorithm(name)
