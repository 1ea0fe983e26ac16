"""What a plan becomes before it is simulated: graphs, frames, programs, placements."""

from tpusim.pipeline.planned_step import (
    checked_rules,
    partitioned_graph,
    planned_graph,
    planned_step,
)
from tpusim.simulation.placement_search import PlacementCandidate, StepOnPlacements
from tpusim.simulation.program_run import choose_costs, replay_program

__all__ = [
    "PlacementCandidate",
    "StepOnPlacements",
    "checked_rules",
    "choose_costs",
    "partitioned_graph",
    "planned_graph",
    "planned_step",
    "replay_program",
]
