"""What each chip of a group sends to the next one alone, as the stages of a pipeline do."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from tpusim.hardware import Span, Topology
from tpusim.hardware.topology import DIMENSION_NAMES
from tpusim.network.chains import Chain, one_chain
from tpusim.network.groups import covered, on_torus
from tpusim.network.paths import Loads

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


def _busiest(loads: Loads) -> Sequence[tuple[int, str, float]]:
    most = loads.reshape(*loads.shape[:2], -1).max(axis=2)
    return [(dim, "+-"[side], float(most[dim, side])) for dim in range(len(most)) for side in (0, 1)
            if most[dim, side] > 0]  # fmt: skip
