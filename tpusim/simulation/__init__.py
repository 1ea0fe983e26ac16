"""Simulation: a model, a plan and a slice, or a compiled program, become a result."""

from tpusim.simulation.explain import explain_collectives, explain_placement
from tpusim.simulation.front_door import simulate
from tpusim.simulation.program_run import replay

__all__ = ["explain_collectives", "explain_placement", "replay", "simulate"]
