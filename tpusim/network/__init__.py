"""Collectives on the torus: groups by coordinates, chains, schedules, and what links carry.

Geometry alone: bytes by byte of a tensor, hops and messages; no bandwidth and no time.
"""

from tpusim.network.algorithm import (
    CHOICES,
    FLAT,
    Algorithm,
    algorithm,
    default_algorithm,
    dimension_sizes,
    is_flat,
)
from tpusim.network.groups import on_torus
from tpusim.network.listed import Spread, listed_loads, listed_messages, spread
from tpusim.network.messages import Message, Moves
from tpusim.network.pattern import Pattern, link_loads_of, paths_seconds, pattern
from tpusim.network.shift import chain_places, shift, shift_loads
from tpusim.network.steps import messages, moves

__all__ = [
    "CHOICES",
    "FLAT",
    "Algorithm",
    "Message",
    "Moves",
    "Pattern",
    "Spread",
    "algorithm",
    "chain_places",
    "default_algorithm",
    "dimension_sizes",
    "is_flat",
    "link_loads_of",
    "listed_loads",
    "listed_messages",
    "messages",
    "moves",
    "on_torus",
    "paths_seconds",
    "pattern",
    "shift",
    "shift_loads",
    "spread",
]
