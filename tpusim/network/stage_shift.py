"""Shifts along a chain, as the stages of a pipeline send to the next one alone."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tpusim.hardware import Span, Topology
from tpusim.network.chains import one_chain
from tpusim.network.grids import Numbers
from tpusim.network.groups import covered_part, on_torus
from tpusim.network.paths import Loads, link_shape
from tpusim.network.pattern import busiest_links, named_links, on_all_links
from tpusim.network.reroutes import chain_walkers, reroute
from tpusim.network.wild_first import LinkSet

Shifted = tuple[tuple[tuple[str, float], ...], int]
"""Bytes on the busiest link of each class, by byte that a chip sends, and the hops of an edge."""


@lru_cache(maxsize=256)
def shift_pattern(
    spans: tuple[Span, ...],
    topology: Topology,
    backward: bool = False,
    closed: bool = False,
    out: LinkSet = frozenset(),
) -> Shifted:
    """Return the loads when each chip of a group sends to the next of its chain, that of a permute.

    backward: to the one before.
    closed: the last sends to the first too, through all others if the chain is a line.
    out: links that carry nothing, around which messages go.
    """
    inner, part, dims = covered_part(spans, topology)
    chain = one_chain(on_torus(inner), part).passed_on(closed)
    edges = chain.forward.shape[1]
    weights = (np.zeros(edges), np.ones(edges))
    weights = weights if backward else weights[::-1]
    loads, hops = chain.loads(weights), int(chain.edge_hops.max())
    if not out:
        return named_links(busiest_links(loads), dims), hops
    sent = chain_walkers(chain, weights, dims, topology)
    found = reroute(sent, on_all_links(loads, dims, topology), topology, out, evenly=False)
    return named_links(busiest_links(found.now)), hops + found.beyond


def chain_positions(spans: Sequence[Span], topology: Topology) -> NDArray[np.intp]:
    """Return the position of each chip in its group's chain; 0 in a group of one."""
    if not on_torus(spans):
        return np.zeros(topology.dims, dtype=np.intp)
    inner, part, dims = covered_part(spans, topology)
    places = np.zeros(part.dims, dtype=np.intp)
    chips = one_chain(inner, part).chips
    places[tuple(np.moveaxis(chips, -1, 0))] = np.arange(chips.shape[1])
    shape = [length if dim in dims else 1 for dim, length in enumerate(topology.dims)]
    return np.broadcast_to(places.reshape(shape), topology.dims)


def shift_loads(spans: Sequence[Span], topology: Topology, ahead: Numbers, back: Numbers) -> Loads:
    """Return the load of every single link in a shift, [dimension, direction, *coordinates].

    ahead: bytes that each place of a chain sends to the next one, the last to the first.
    back: to the one before, the first to the last.

    A chain of one sends nothing.
    """
    if not on_torus(spans):
        return np.zeros(link_shape(topology))
    inner, part, dims = covered_part(spans, topology)
    closed = bool(ahead[-1] or back[0])
    chain = one_chain(inner, part).passed_on(closed)
    edges = chain.forward.shape[1]
    loads = chain.loads((ahead[:edges], np.roll(back, -1)[:edges]))
    return on_all_links(loads, dims, topology)
