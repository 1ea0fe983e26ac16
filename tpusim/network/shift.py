"""What each chip of a group sends to the next one alone, as the stages of a pipeline do."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tpusim.hardware import Span, Topology
from tpusim.hardware.topology import DIMENSION_NAMES
from tpusim.network.chains import Chain, Numbers, one_chain
from tpusim.network.groups import covered, on_torus
from tpusim.network.paths import Loads, link_shape

Shifted = tuple[tuple[tuple[str, float], ...], int]
"""Bytes on the busiest link of each class, by byte that a chip sends, and the hops of the way."""


@lru_cache(maxsize=256)
def shift(
    spans: tuple[Span, ...], topology: Topology, backward: bool = False, closed: bool = False
) -> Shifted:
    """What links carry when each chip of a group sends to the next of its chain.

    backward: to the one before. closed: the last sends to the first too, through all others where
    the chain is a line. The chain is that of a permute.
    """
    inner, part, dims = covered(spans, topology)
    chain = Chain.of(one_chain(on_torus(inner), part).chips, closed, part)
    edges = chain.forward.shape[1]
    ways = (np.zeros(edges), np.ones(edges))
    loads = _busiest(chain.loads(ways if backward else ways[::-1]))
    links = tuple((f"ici:{DIMENSION_NAMES[dims[dim]]}{side}", load) for dim, side, load in loads)
    return links, int(chain.edge_hops.max())


def chain_places(spans: Sequence[Span], topology: Topology) -> NDArray[np.intp]:
    """The place of each chip in the chain of its group, [*coordinates]; 0 in a group of one."""
    if not on_torus(spans):
        return np.zeros(topology.dims, dtype=np.intp)
    inner, part, dims = covered(spans, topology)
    places = np.zeros(part.dims, dtype=np.intp)
    chips = one_chain(inner, part).chips
    places[tuple(np.moveaxis(chips, -1, 0))] = np.arange(chips.shape[1])
    shape = [length if dim in dims else 1 for dim, length in enumerate(topology.dims)]
    return np.broadcast_to(places.reshape(shape), topology.dims)


def shift_loads(spans: Sequence[Span], topology: Topology, ahead: Numbers, back: Numbers) -> Loads:
    """What every single link carries, [dimension, direction, *coordinates], as `shift` goes.

    ahead: bytes that each place of a chain sends to the next one, the last to the first. back: to
    the one before, the first to the last. A chain of one sends nothing.
    """
    whole = np.zeros(link_shape(topology))
    if not on_torus(spans):
        return whole
    inner, part, dims = covered(spans, topology)
    closed = bool(ahead[-1] or back[0])
    chain = Chain.of(one_chain(inner, part).chips, closed, part)
    edges = chain.forward.shape[1]
    loads = chain.loads((ahead[:edges], np.roll(back, -1)[:edges]))
    shape = [length if dim in dims else 1 for dim, length in enumerate(topology.dims)]
    for at, dim in enumerate(dims):
        whole[dim] = loads[at].reshape(2, *shape)
    return whole


def _busiest(loads: Loads) -> Sequence[tuple[int, str, float]]:
    most = loads.reshape(*loads.shape[:2], -1).max(axis=2)
    return [(dim, "+-"[side], float(most[dim, side])) for dim in range(len(most)) for side in (0, 1)
            if most[dim, side] > 0]  # fmt: skip
