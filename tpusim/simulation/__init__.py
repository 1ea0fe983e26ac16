"""Simulation: a model, a plan and a slice, or a compiled program, become a result."""

from tpusim.simulation.explain import explain_collectives as explain_collectives
from tpusim.simulation.explain import explain_placement as explain_placement
from tpusim.simulation.faults import Slowdown as Slowdown
from tpusim.simulation.faults import slowdown as slowdown
from tpusim.simulation.front_door import simulate as simulate
from tpusim.simulation.program_run import replay as replay
