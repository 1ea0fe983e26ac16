"""What a result is added up from: totals, memory, paths, and keys that change nothing."""

from tpusim.results.extra_flops import PartitionedStep
from tpusim.results.resources import LaneBounds, LaneMachine, TaskBound
from tpusim.results.result import FRAGMENTATION_LABEL, memory_held
from tpusim.results.totals import to_host_bytes, total_flops
from tpusim.results.unused_keys import KeyEffects, unused_keys
from tpusim.results.unused_model_keys import unused_model_keys

__all__ = [
    "FRAGMENTATION_LABEL",
    "KeyEffects",
    "LaneBounds",
    "LaneMachine",
    "PartitionedStep",
    "TaskBound",
    "memory_held",
    "to_host_bytes",
    "total_flops",
    "unused_keys",
    "unused_model_keys",
]
