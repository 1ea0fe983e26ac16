"""What the lowering makes of a body: work, bytes, and the table of habits."""

from tpusim.lowering.collective_lowering import IDEAL, Lowering, Overlap
from tpusim.lowering.collectives_by_generation import (
    TABLE,
    lowering_for,
    permutes_wait,
    possible_lowerings,
)
from tpusim.lowering.op_work import buffer_bytes, collective_bytes, flops_of, padding_bytes, work_of
from tpusim.partition.expert_load import ExpertCapacity, busiest_load

__all__ = [
    "IDEAL",
    "TABLE",
    "ExpertCapacity",
    "Lowering",
    "Overlap",
    "buffer_bytes",
    "busiest_load",
    "collective_bytes",
    "flops_of",
    "lowering_for",
    "padding_bytes",
    "permutes_wait",
    "possible_lowerings",
    "work_of",
]
