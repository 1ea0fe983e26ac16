"""The event engine: a costed program in, an exact timeline out.

Read `compile_lane` (tasks to integers), `instructions`, `lane` (the process of one device), `flows`
(shared links), `fold` (periodic loops), `journal` (what happened), `memory` and `timeline` (what
follows from it), in this order; `run_lanes` ties them together. Pipelines add `stage_code`,
`lane_part`, `stage_lane`, `stage_memory` and `pipeline`; the hop-by-hop network adds `hop_messages`
and `hops`. Hosts that feed a repeated step are `hosts`.
"""

from tpusim.engine.clock import picoseconds as picoseconds
from tpusim.engine.clock import whole_bytes as whole_bytes
from tpusim.engine.compile_lane import LinkNumbers as LinkNumbers
from tpusim.engine.compile_lane import compile_lane as compile_lane
from tpusim.engine.compile_lane import link_numbers as link_numbers
from tpusim.engine.compile_lane import task_numbers as task_numbers
from tpusim.engine.flows import fair_rates as fair_rates
from tpusim.engine.fold import Fold as Fold
from tpusim.engine.hosts import HostLine as HostLine
from tpusim.engine.hosts import HostRun as HostRun
from tpusim.engine.hosts import HostStage as HostStage
from tpusim.engine.hosts import feed as feed
from tpusim.engine.instructions import ON_CORE as ON_CORE
from tpusim.engine.instructions import LaneCode as LaneCode
from tpusim.engine.instructions import TaskNumbers as TaskNumbers
from tpusim.engine.instructions import TaskStep as TaskStep
from tpusim.engine.journal import CallTimes as CallTimes
from tpusim.engine.journal import Level as Level
from tpusim.engine.journal import RepeatLevel as RepeatLevel
from tpusim.engine.lane import Race as Race
from tpusim.engine.lane import StalledError as StalledError
from tpusim.engine.memory import LaneMemory as LaneMemory
from tpusim.engine.memory import MemoryChange as MemoryChange
from tpusim.engine.run_lanes import NETWORK_MODES as NETWORK_MODES
from tpusim.engine.run_lanes import CodeRun as CodeRun
from tpusim.engine.run_lanes import NetworkMode as NetworkMode
from tpusim.engine.run_lanes import check_network_mode as check_network_mode
from tpusim.engine.run_lanes import run as run
from tpusim.engine.stage_code import PipelineCode as PipelineCode
from tpusim.engine.stage_code import StageCode as StageCode
from tpusim.engine.stage_code import compile_pipeline as compile_pipeline
from tpusim.engine.stage_code import has_calls as has_calls
from tpusim.engine.timeline import BUBBLE as BUBBLE
from tpusim.engine.timeline import LinkUse as LinkUse
from tpusim.engine.timeline import Record as Record
from tpusim.engine.timeline import Timeline as Timeline
