"""Seconds of an operation on a device, bytes and seconds of a collective on a torus.

`compute` has the work of one operation, `route` what a collective puts on each link, `collective`
its seconds; `program_costs` makes a program's tasks of them. Equations are pure functions that take
numbers or arrays of them.
"""

from tpusim.costs.attention import attention_seconds as attention_seconds
from tpusim.costs.collective import BEST_ALGORITHM as BEST_ALGORITHM
from tpusim.costs.collective import best_route as best_route
from tpusim.costs.collective import collective_seconds as collective_seconds
from tpusim.costs.collective import delay_seconds as delay_seconds
from tpusim.costs.collective import link_seconds as link_seconds
from tpusim.costs.collective import route_seconds as route_seconds
from tpusim.costs.compute import matmul_seconds as matmul_seconds
from tpusim.costs.convolution import convolution_seconds as convolution_seconds
from tpusim.costs.convolution import fastest_way as fastest_way
from tpusim.costs.convolution import is_depthwise as is_depthwise
from tpusim.costs.convolution import useful_share as useful_share
from tpusim.costs.device_classes import cost_classes as cost_classes
from tpusim.costs.device_classes import cost_worst as cost_worst
from tpusim.costs.impaired_links import SliceLinks as SliceLinks
from tpusim.costs.links import DCN as DCN
from tpusim.costs.links import DIE_LINKS as DIE_LINKS
from tpusim.costs.links import FROM_HOST as FROM_HOST
from tpusim.costs.links import ICI as ICI
from tpusim.costs.links import TO_HOST as TO_HOST
from tpusim.costs.links import capacities as capacities
from tpusim.costs.network_tasks import CollectiveCosts as CollectiveCosts
from tpusim.costs.network_tasks import KnownParts as KnownParts
from tpusim.costs.network_tasks import StageMessageCosts as StageMessageCosts
from tpusim.costs.network_tasks import TransferPart as TransferPart
from tpusim.costs.network_tasks import collective_key as collective_key
from tpusim.costs.program_costs import cost_program as cost_program
from tpusim.costs.program_costs import cost_programs as cost_programs
from tpusim.costs.program_costs import work_seconds as work_seconds
from tpusim.costs.route import BUSIEST_WEIGHT as BUSIEST_WEIGHT
from tpusim.costs.route import CollectiveRoute as CollectiveRoute
from tpusim.costs.route import RouteMessages as RouteMessages
from tpusim.costs.route import dcn_route as dcn_route
from tpusim.costs.route import listed_route as listed_route
from tpusim.costs.route import route as route
from tpusim.costs.route import shift_route as shift_route
from tpusim.costs.tasks import CORE as CORE
from tpusim.costs.tasks import DISPATCH as DISPATCH
from tpusim.costs.tasks import HBM as HBM
from tpusim.costs.tasks import HOST_LABEL as HOST_LABEL
from tpusim.costs.tasks import INPUT as INPUT
from tpusim.costs.tasks import ON_HOST as ON_HOST
from tpusim.costs.tasks import SKEW as SKEW
from tpusim.costs.tasks import STRAGGLERS as STRAGGLERS
from tpusim.costs.tasks import CostedProgram as CostedProgram
from tpusim.costs.tasks import MessageTask as MessageTask
from tpusim.costs.tasks import Task as Task
from tpusim.costs.tasks import TaskLoop as TaskLoop
from tpusim.costs.tasks import TaskOp as TaskOp
from tpusim.costs.tasks import TaskSegment as TaskSegment
from tpusim.costs.tasks import TopTask as TopTask
from tpusim.costs.tasks import alone_seconds as alone_seconds
from tpusim.costs.tasks import first_phase as first_phase
