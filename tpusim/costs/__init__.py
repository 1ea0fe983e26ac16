"""Seconds of an operation on a device, bytes and seconds of a collective on a torus.

Pure functions, one equation each, that take numbers or arrays of them.
"""

from tpusim.costs.algorithm import Algorithm, default_algorithm
from tpusim.costs.attention import attention_seconds
from tpusim.costs.bind import cost_program, work_seconds
from tpusim.costs.collective import (
    Route,
    capacities,
    collective_seconds,
    dcn_route,
    delay_seconds,
    route,
    route_seconds,
)
from tpusim.costs.convolution import convolution_seconds
from tpusim.costs.matmul import matmul_seconds
from tpusim.costs.tasks import CORE, HBM, CostedProgram, Task, TaskLoop, TaskOp
from tpusim.costs.torus import Group, Way, group, one_ring
from tpusim.costs.vector import group_seconds

__all__ = [
    "CORE",
    "HBM",
    "Algorithm",
    "CostedProgram",
    "Group",
    "Route",
    "Task",
    "TaskLoop",
    "TaskOp",
    "Way",
    "attention_seconds",
    "capacities",
    "collective_seconds",
    "convolution_seconds",
    "cost_program",
    "dcn_route",
    "default_algorithm",
    "delay_seconds",
    "group",
    "group_seconds",
    "matmul_seconds",
    "one_ring",
    "route",
    "route_seconds",
    "work_seconds",
]
