"""Rings of a twisted torus, each along one dimension until it returns to its start.

On n x n x 2n, the ring along a short dimension passes the wrap, comes back shifted by half of the
long dimension, and closes only after 2n chips. So the rings of different dimensions meet in more
than one chip: once data is gathered along one, chips half a ring apart of the next hold the same,
and only part of it has to be passed on. Counted from the coordinates, as cosets of the group that
steps along dimensions generate.
"""

from collections.abc import Sequence

import numpy as np

from tpusim.hardware import Topology
from tpusim.network.chains import Chain
from tpusim.network.groups import Chips

ChipPlace = tuple[int, ...]


def orbit_chains(order: Sequence[int], topology: Topology) -> list[Chain]:
    """Return the chains of a gather over the whole torus along the dimensions in this order.

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
