"""Toruses, groups of chips on them, and collectives, drawn at random or written briefly."""

from math import prod
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from tpusim.hardware import Span, Topology
from tpusim.network import MAX_HALO_DISTANCE, Algorithm, Message, algorithms_for, at_distance
from tpusim.program import CollectiveKind as Kind

Loads = NDArray[np.float64]


class Case(NamedTuple):
    """A collective, how it is carried out, and where."""

    kind: Kind
    how: str
    spans: tuple[Span, ...]
    topology: Topology


def torus(*dims: int, wrap: bool = True, twisted: bool = False) -> Topology:
    return Topology(dims, (wrap,) * len(dims), twisted)


def whole(topology: Topology) -> tuple[Span, ...]:
    """All dimensions, so that the group is the slice."""
    return tuple(Span(dim, size) for dim, size in enumerate(topology.dims))


def carried_out(kind: Kind) -> list[str]:
    """The algorithms of a kind, but the one that stands for another kind, and far permutes."""
    far = {
        at_distance(how, distance)
        for how in (Algorithm.HALO, Algorithm.STEP)
        for distance in range(3, MAX_HALO_DISTANCE + 1)
    }
    return [how for how in names_for(kind) if how not in (Algorithm.ALL_REDUCE, *far)]


def names_for(kind: Kind) -> list[str]:
    """The names of all algorithms of a kind."""
    return [each.name for each in algorithms_for(kind)]


PAIRS = [(kind, how) for kind in Kind for how in carried_out(kind)]


@st.composite
def topologies(draw: st.DrawFn, most: int = 64) -> Topology:
    """Any torus or mesh of at most so many chips; now and then a twisted one."""
    if most >= 128 and draw(st.integers(0, 7)) == 7:
        return torus(4, 4, 8, twisted=True)
    dims: list[int] = []
    for _ in range(draw(st.integers(1, 3))):
        dims.append(draw(st.sampled_from([n for n in (4, 3, 2, 8, 5, 6, 1, 16)
                                          if n * prod(dims) <= most])))  # fmt: skip
    return Topology(tuple(dims), tuple(draw(st.booleans()) for _ in dims))


@st.composite
def places(draw: st.DrawFn, most: int = 64) -> tuple[tuple[Span, ...], Topology]:
    """A group of two chips or more: whole dimensions, lines and strided parts, in any order."""
    topology = draw(topologies(most).filter(lambda found: found.chips > 1))
    digits = [span for dim, size in enumerate(topology.dims) for span in draw(cut(dim, size))]
    taken = [span for span in digits if draw(st.booleans())]
    if not any(span.size > 1 for span in taken):
        taken = digits
    return tuple(draw(st.permutations(taken))), topology


def cut(dim: int, length: int) -> st.SearchStrategy[tuple[Span, ...]]:
    """The digits of the places along a dimension: the whole of it, or two that tile it."""
    parts = [part for part in range(2, length) if length % part == 0]
    two = [(Span(dim, part), Span(dim, length // part, part)) for part in parts]
    return st.sampled_from([(Span(dim, length),), *two])


@st.composite
def cases(draw: st.DrawFn, most: int = 64) -> Case:
    """Any collective, carried out in any way, among any group."""
    return Case(*draw(st.sampled_from(PAIRS)), *draw(places(most)))


def loads_of(messages: tuple[Message, ...], topology: Topology) -> Loads:
    """The bytes that messages put on each link, by byte of the tensor."""
    total = np.zeros(2 * len(topology.dims) * topology.chips)
    for message in messages:
        for link in message.links:
            total[link] += message.share
    return total.reshape(len(topology.dims), 2, *topology.dims)
