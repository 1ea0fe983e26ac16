"""Cuts of a torus into two halves, counted on its links."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tpusim.hardware.topology import Topology


def bisection_links(topology: Topology) -> int:
    """The fewest links, one way, from one half of the chips to the other, over cuts by planes.

    A half is a block of neighbouring planes, [offset, offset + length / 2) along a dimension of
    even length, around the end if need be; all dimensions and offsets are tried. Where every
    length is odd, the one half has a plane more. 0 for a single chip.
    """
    even = [dim for dim, length in enumerate(topology.dims) if length % 2 == 0]
    longer = [dim for dim, length in enumerate(topology.dims) if length > 1]
    return min((cut for dim in even or longer for cut in _cuts(topology, dim)), default=0)


def _cuts(topology: Topology, dim: int) -> Iterator[int]:
    """Links out of each block of half of the planes along `dim`."""
    length = topology.dims[dim]
    between = _links_between(topology, dim)
    for offset in range(length):
        inside = (np.arange(length) - offset) % length < length // 2
        yield int(between[inside][:, ~inside].sum())


def _links_between(topology: Topology, dim: int) -> NDArray[np.intp]:
    """Links from each plane across `dim` to each other plane: [from, to]."""
    length = topology.dims[dim]
    places = np.indices(topology.dims).reshape(len(topology.dims), -1).T
    between = np.zeros((length, length), np.intp)
    for along in range(len(topology.dims)):
        for sign in (1, -1):
            starts = places[_has_link(topology, places, along, sign)]
            ends = topology.step(starts, along, sign)
            np.add.at(between, (starts[:, dim], ends[:, dim]), 1)
    return between


def _has_link(
    topology: Topology, places: NDArray[np.intp], along: int, sign: int
) -> NDArray[np.bool_]:
    """Whether each place has a link in a direction: all have, but the ends of a mesh."""
    end = topology.dims[along] - 1 if sign > 0 else 0
    return np.asarray((places[:, along] != end) | topology.wrap[along])
