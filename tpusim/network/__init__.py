"""Collectives on the torus: groups by coordinates, chains, schedules, and what links carry.

Geometry alone: bytes by byte of a tensor, hops and messages; no bandwidth and no time.
"""

from tpusim.network.algorithm import ALGORITHMS as ALGORITHMS
from tpusim.network.algorithm import FLAT as FLAT
from tpusim.network.algorithm import MAX_HALO_DISTANCE as MAX_HALO_DISTANCE
from tpusim.network.algorithm import Algorithm as Algorithm
from tpusim.network.algorithm import CollectiveAlgorithm as CollectiveAlgorithm
from tpusim.network.algorithm import algorithms_for as algorithms_for
from tpusim.network.algorithm import always_default as always_default
from tpusim.network.algorithm import at_distance as at_distance
from tpusim.network.algorithm import default_algorithm as default_algorithm
from tpusim.network.algorithm import is_flat as is_flat
from tpusim.network.algorithm import never_default as never_default
from tpusim.network.algorithm import register_algorithm as register_algorithm
from tpusim.network.algorithm import resolve_algorithm as resolve_algorithm
from tpusim.network.broken_links import rerouted_pattern as rerouted_pattern
from tpusim.network.chains import Chain as Chain
from tpusim.network.chains import ChainMove as ChainMove
from tpusim.network.chains import dimension_chain as dimension_chain
from tpusim.network.chains import is_ring as is_ring
from tpusim.network.chains import one_chain as one_chain
from tpusim.network.groups import dimension_sizes as dimension_sizes
from tpusim.network.groups import groups as groups
from tpusim.network.groups import on_torus as on_torus
from tpusim.network.listed_groups import ListedLoads as ListedLoads
from tpusim.network.listed_groups import listed_loads as listed_loads
from tpusim.network.listed_groups import listed_messages as listed_messages
from tpusim.network.listed_groups import listed_pattern as listed_pattern
from tpusim.network.messages import CollectiveMoves as CollectiveMoves
from tpusim.network.messages import Message as Message
from tpusim.network.messages import messages as messages
from tpusim.network.paths import Loads as Loads
from tpusim.network.paths import link_shape as link_shape
from tpusim.network.pattern import Pattern as Pattern
from tpusim.network.pattern import link_loads_of as link_loads_of
from tpusim.network.pattern import paths_seconds as paths_seconds
from tpusim.network.pattern import pattern as pattern
from tpusim.network.reroutes import rerouted_messages as rerouted_messages
from tpusim.network.schedule import SchedulePhase as SchedulePhase
from tpusim.network.schedule import ScheduleStage as ScheduleStage
from tpusim.network.slow_links import slowed_pattern as slowed_pattern
from tpusim.network.stage_shift import chain_positions as chain_positions
from tpusim.network.stage_shift import shift_loads as shift_loads
from tpusim.network.stage_shift import shift_pattern as shift_pattern
from tpusim.network.wild_first import LinkSet as LinkSet
from tpusim.network.wild_first import link_numbers as link_numbers
