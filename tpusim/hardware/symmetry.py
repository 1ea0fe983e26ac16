"""Which placements are the same, because the torus looks the same with its dimensions exchanged."""

from collections.abc import Iterable
from itertools import permutations

from tpusim.hardware.placement import Placement
from tpusim.hardware.spans import DIE, Span
from tpusim.hardware.topology import Topology

_Renamed = tuple[tuple[tuple[int, int, int], ...], ...]


def symmetries(topology: Topology) -> tuple[tuple[int, ...], ...]:
    """The permutations of dimensions that map the torus onto itself, the identity first.

    They exchange dimensions of equal length and equal wraparound. A twist hangs on the lengths
    alone, so it is mapped onto itself too.

    >>> symmetries(Topology.of("v4", "8x16x16"))
    ((0, 1, 2), (0, 2, 1))
    """
    kinds = list(zip(topology.dims, topology.wrap, strict=True))
    orders = permutations(range(len(kinds)))
    return tuple(order for order in orders if [kinds[dim] for dim in order] == kinds)


def distinct(ways: Iterable[Placement], topology: Topology) -> tuple[Placement, ...]:
    """The first placement of each class that the symmetries of the torus make equal.

    The order of an axis' spans does not count: its chips are the same.
    """
    orders = symmetries(topology)
    found: dict[_Renamed, Placement] = {}
    for way in ways:
        found.setdefault(min(_renamed(way, order) for order in orders), way)
    return tuple(found.values())


def _renamed(way: Placement, order: tuple[int, ...]) -> _Renamed:
    """The spans of each axis, sorted, with each dimension under its new number."""
    return tuple(tuple(sorted(_moved(span, order) for span in spans)) for _, spans in way.axes)


def _moved(span: Span, order: tuple[int, ...]) -> tuple[int, int, int]:
    return (DIE if span.dim == DIE else order[span.dim], span.size, span.stride)
