"""The event engine: a costed program in, an exact timeline out.

Read `compile_lane` (tasks to integers), `instructions`, `lane` (the process of one device), `flows`
(shared links), `fold` (periodic loops), `journal` (what happened), `memory` and `timeline` (what
follows from it), in this order; `run_lanes` ties them together. Pipelines add `stage_code`,
`lane_part`, `stage_lane`, `stage_memory` and `pipeline`; the hop-by-hop network adds `hop_messages`
and `hops`. Hosts that feed a repeated step are `hosts`.
"""

from tpusim.engine.clock import picoseconds, whole_bytes
from tpusim.engine.compile_lane import LinkNumbers, compile_lane, link_numbers, task_numbers
from tpusim.engine.flows import fair_rates
from tpusim.engine.fold import Fold
from tpusim.engine.hosts import HostLine, HostRun, HostStage, feed
from tpusim.engine.instructions import ON_CORE, LaneCode, LoopEnd, LoopStart, TaskNumbers, TaskStep
from tpusim.engine.journal import CallTimes, Level, RepeatLevel
from tpusim.engine.lane import Race, StalledError
from tpusim.engine.memory import HeldTensor, LaneMemory, MemoryChange
from tpusim.engine.run_lanes import (
    NETWORK_MODES,
    CodeRun,
    NetworkMode,
    check_network_mode,
    run,
)
from tpusim.engine.stage_code import PipelineCode, StageCode, compile_pipeline, has_calls
from tpusim.engine.timeline import BUBBLE, LinkUse, Record, Stats, Timeline

__all__ = [
    "BUBBLE",
    "NETWORK_MODES",
    "ON_CORE",
    "CallTimes",
    "CodeRun",
    "Fold",
    "HeldTensor",
    "HostLine",
    "HostRun",
    "HostStage",
    "LaneCode",
    "LaneMemory",
    "Level",
    "LinkNumbers",
    "LinkUse",
    "LoopEnd",
    "LoopStart",
    "MemoryChange",
    "NetworkMode",
    "PipelineCode",
    "Race",
    "Record",
    "RepeatLevel",
    "StageCode",
    "StalledError",
    "Stats",
    "TaskNumbers",
    "TaskStep",
    "Timeline",
    "check_network_mode",
    "compile_lane",
    "compile_pipeline",
    "fair_rates",
    "feed",
    "has_calls",
    "link_numbers",
    "picoseconds",
    "run",
    "task_numbers",
    "whole_bytes",
]
