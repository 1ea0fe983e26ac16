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
_PAIRS = {
    ("v4", _GATHER): Algorithm.ND,
    ("v4", _SCATTER): Algorithm.ND,
    ("v5p", _GATHER): Algorithm.ND,
    ("v5p", _SCATTER): Algorithm.ND,
    ("v5e", _REDUCE): Algorithm.RING,
    ("v5e", _SCATTER): Algorithm.RING,
    ("v6e", _REDUCE): Algorithm.RING,
    ("v6e", _SCATTER): Algorithm.RING,
}
"""Of groups that have two chips along each of several dimensions: 2x2 or 2x2x2."""

SHORT_RING_BYTES = 8 * 2**10
"""Most bytes of an all-reduce over eight devices, on as many chips of 7x, that is one ring."""


def unnoted_algorithm(
    generation: str, kind: CollectiveKind, sides: Collection[int], devices: int, nbytes: float
) -> str:
    """Return the algorithm of a synchronous collective; empty for the default of its kind.

    sides: chips of a group along each dimension of the torus that it covers.
    devices: of a group; more than its chips if it crosses the die.
    """
    if len(sides) < 2 or set(sides) != {2}:
        return ""
    if generation == "7x":
        short = len(sides) == 3 and devices == 8 and nbytes <= SHORT_RING_BYTES
        return Algorithm.RING if short and kind is _REDUCE else ""
    return _PAIRS.get((generation, kind), "")
