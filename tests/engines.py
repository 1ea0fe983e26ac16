"""The parts of the engine, for laws about one of them."""

from tpusim.engine.clock import nanobytes, nanobytes_per_ps
from tpusim.engine.flows import FlowNetwork
from tpusim.engine.lane import Lane, run_processes
from tpusim.engine.lane_clock import LaneClock

__all__ = [
    "FlowNetwork",
    "Lane",
    "LaneClock",
    "nanobytes",
    "nanobytes_per_ps",
    "run_processes",
]
