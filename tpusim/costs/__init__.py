"""Seconds of an operation on a device, bytes and seconds of a collective on a torus.

Pure functions, one equation each, that take numbers or arrays of them.
"""

from tpusim.costs.attention import attention_seconds
from tpusim.costs.bind import cost_program, cost_programs, work_seconds
from tpusim.costs.collective import (
    BEST,
    best_route,
    collective_seconds,
    delay_seconds,
    route_seconds,
)
from tpusim.costs.convolution import convolution_seconds
from tpusim.costs.links import DCN, FROM_HOST, TO_HOST, capacities
from tpusim.costs.matmul import matmul_seconds
from tpusim.costs.route import WHOLE, Route, dcn_route, route
from tpusim.costs.tasks import (
    CORE,
    HBM,
    CostedProgram,
    Task,
    TaskLoop,
    TaskOp,
    TaskSegment,
    Way,
)
from tpusim.costs.vector import group_seconds

__all__ = [
    "BEST",
    "CORE",
    "DCN",
    "FROM_HOST",
    "HBM",
    "TO_HOST",
    "WHOLE",
    "CostedProgram",
    "Route",
    "Task",
    "TaskLoop",
    "TaskOp",
    "TaskSegment",
    "Way",
    "attention_seconds",
    "best_route",
    "capacities",
    "collective_seconds",
    "convolution_seconds",
    "cost_program",
    "cost_programs",
    "dcn_route",
    "delay_seconds",
    "group_seconds",
    "matmul_seconds",
    "route",
    "route_seconds",
    "work_seconds",
]
