"""Collectives on the torus: groups by coordinates, chains, schedules, and what links carry.

Geometry alone: bytes by byte of a tensor, hops and messages; no bandwidth and no time.
"""

from tpusim.network.algorithm import (
    ALGORITHMS,
    FLAT,
    MAX_HALO_DISTANCE,
    Algorithm,
    CollectiveAlgorithm,
    algorithms_for,
    always_default,
    at_distance,
    default_algorithm,
    is_flat,
    never_default,
    register_algorithm,
    resolve_algorithm,
)
from tpusim.network.chains import Chain, ChainMove, dimension_chain, is_ring, one_chain
from tpusim.network.groups import dimension_sizes, groups, on_torus
from tpusim.network.listed_groups import ListedLoads, listed_loads, listed_messages, listed_pattern
from tpusim.network.messages import CollectiveMoves, Message, messages
from tpusim.network.paths import Loads, link_shape
from tpusim.network.pattern import Pattern, link_loads_of, paths_seconds, pattern
from tpusim.network.schedule import SchedulePhase, ScheduleStage
from tpusim.network.slow_links import slowed_pattern
from tpusim.network.stage_shift import chain_positions, shift_loads, shift_pattern

__all__ = [
    "ALGORITHMS",
    "FLAT",
    "MAX_HALO_DISTANCE",
    "Algorithm",
    "Chain",
    "ChainMove",
    "CollectiveAlgorithm",
    "CollectiveMoves",
    "ListedLoads",
    "Loads",
    "Message",
    "Pattern",
    "SchedulePhase",
    "ScheduleStage",
    "algorithms_for",
    "always_default",
    "at_distance",
    "chain_positions",
    "default_algorithm",
    "dimension_chain",
    "dimension_sizes",
    "groups",
    "is_flat",
    "is_ring",
    "link_loads_of",
    "link_shape",
    "listed_loads",
    "listed_messages",
    "listed_pattern",
    "messages",
    "never_default",
    "on_torus",
    "one_chain",
    "paths_seconds",
    "pattern",
    "register_algorithm",
    "resolve_algorithm",
    "shift_loads",
    "shift_pattern",
    "slowed_pattern",
]
