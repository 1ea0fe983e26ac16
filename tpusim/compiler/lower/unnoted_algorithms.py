"""Algorithms of collectives in a program for which no code was generated.

The compiler notes them while it generates code (`collective_metadata.py`). Most are the defaults of
the network's model. These are the others, as seen in programs that have notes (libtpu 0.0.42.1),
but for one: on v5e, some plain gathers over a 16x16 slice go through the router.
"""

from collections.abc import Collection

from tpusim.network import Algorithm
from tpusim.program import CollectiveKind

_GATHER, _REDUCE, _SCATTER = (
    CollectiveKind.ALL_GATHER,
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.REDUCE_SCATTER,
)
_SQUARES = {
    ("v4", _GATHER): Algorithm.ND,
    ("v4", _SCATTER): Algorithm.ND,
    ("v5p", _GATHER): Algorithm.ND,
    ("v5p", _SCATTER): Algorithm.ND,
    ("v5e", _REDUCE): Algorithm.RING,
    ("v5e", _SCATTER): Algorithm.RING,
}
"""Of groups that are squares of 2x2 chips."""

SHORT_RING_BYTES = 8 * 2**10
"""Most bytes of an all-reduce over a cube of 2x2x2 chips of 7x that runs as one ring."""


def unnoted_algorithm(
    generation: str, kind: CollectiveKind, sides: Collection[int], nbytes: float
) -> str:
    """Return the algorithm of a synchronous collective; empty for the default of its kind.

    sides: chips of a group along each dimension of the torus that it covers.
    """
    if tuple(sides) == (2, 2):
        return _SQUARES.get((generation, kind), "")
    short = generation == "7x" and tuple(sides) == (2, 2, 2) and nbytes <= SHORT_RING_BYTES
    return Algorithm.RING if short and kind is _REDUCE else ""
