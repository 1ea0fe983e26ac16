"""Seconds of an operation on a device, bytes and seconds of a collective on a torus.

`compute` has the work of one operation, `route` what a collective puts on each link, `collective`
its seconds; `program_costs` makes a program's tasks of them. Equations are pure functions that take
numbers or arrays of them.
"""

from tpusim.costs.collective import (
    BEST_ALGORITHM,
    best_route,
    collective_seconds,
    delay_seconds,
    link_seconds,
    route_seconds,
)
from tpusim.costs.compute import (
    attention_seconds,
    group_seconds,
    matmul_seconds,
)
from tpusim.costs.convolution import (
    convolution_seconds,
    fastest_way,
    is_depthwise,
    useful_share,
)
from tpusim.costs.device_classes import cost_classes
from tpusim.costs.links import DCN, DIE_LINKS, FROM_HOST, ICI, TO_HOST, capacities
from tpusim.costs.network_tasks import (
    CollectiveCosts,
    KnownParts,
    TransferPart,
    collective_key,
)
from tpusim.costs.program_costs import cost_program, cost_programs, work_seconds
from tpusim.costs.route import (
    BUSIEST_WEIGHT,
    CollectiveRoute,
    RouteMessages,
    dcn_route,
    listed_route,
    route,
    shift_route,
)
from tpusim.costs.tasks import (
    CORE,
    DISPATCH,
    HBM,
    HOST_LABEL,
    INPUT,
    ON_HOST,
    SKEW,
    STRAGGLERS,
    CostedProgram,
    MessageTask,
    Task,
    TaskLoop,
    TaskOp,
    TaskSegment,
    TopTask,
    alone_seconds,
    core_seconds,
    first_phase,
)

__all__ = [
    "BEST_ALGORITHM",
    "BUSIEST_WEIGHT",
    "CORE",
    "DCN",
    "DIE_LINKS",
    "DISPATCH",
    "FROM_HOST",
    "HBM",
    "HOST_LABEL",
    "ICI",
    "INPUT",
    "ON_HOST",
    "SKEW",
    "STRAGGLERS",
    "TO_HOST",
    "CollectiveCosts",
    "CollectiveRoute",
    "CostedProgram",
    "KnownParts",
    "MessageTask",
    "RouteMessages",
    "Task",
    "TaskLoop",
    "TaskOp",
    "TaskSegment",
    "TopTask",
    "TransferPart",
    "alone_seconds",
    "attention_seconds",
    "best_route",
    "capacities",
    "collective_key",
    "collective_seconds",
    "convolution_seconds",
    "core_seconds",
    "cost_classes",
    "cost_program",
    "cost_programs",
    "dcn_route",
    "delay_seconds",
    "fastest_way",
    "first_phase",
    "group_seconds",
    "is_depthwise",
    "link_seconds",
    "listed_route",
    "matmul_seconds",
    "route",
    "route_seconds",
    "shift_route",
    "useful_share",
    "work_seconds",
]
