"""Lowering: a partitioned graph becomes the program of one device, as XLA for TPU makes it.

A body of the partitioned graph goes through a list of passes, which decide how each collective
runs and in which order; what comes out becomes the operations of a `Program`.
"""

from tpusim.lowering.accumulate import MICROBATCHES, GradientDeps, accumulator, addition, zeros
from tpusim.lowering.asked_place import AskedPlace, SharedLowerings
from tpusim.lowering.body_entries import Entry
from tpusim.lowering.decisions import LoweringDecisions
from tpusim.lowering.device_groups import group_of
from tpusim.lowering.evidence import LoweringEvidence, borrowed_notes, lowering_evidence
from tpusim.lowering.late_reductions import reduce_once
from tpusim.lowering.lower_body import Bodies, BodyLowerer
from tpusim.lowering.lower_graph import barrier, batch_copy, lower, sizes_of, with_optimizer
from tpusim.lowering.lowering_pass import LoweringPass
from tpusim.lowering.offload import names
from tpusim.lowering.operand_dtypes import cast_before, check_dtypes
from tpusim.lowering.pass_log import PassRecord, record_passes
from tpusim.lowering.pass_manager import all_passes, check_switches, switched_off
from tpusim.lowering.ring_attention import ONWARD
from tpusim.lowering.weight_gathers import gathers

__all__ = [
    "MICROBATCHES",
    "ONWARD",
    "AskedPlace",
    "Bodies",
    "BodyLowerer",
    "Entry",
    "GradientDeps",
    "LoweringDecisions",
    "LoweringEvidence",
    "LoweringPass",
    "PassRecord",
    "SharedLowerings",
    "accumulator",
    "addition",
    "all_passes",
    "barrier",
    "batch_copy",
    "borrowed_notes",
    "cast_before",
    "check_dtypes",
    "check_switches",
    "gathers",
    "group_of",
    "lower",
    "lowering_evidence",
    "names",
    "record_passes",
    "reduce_once",
    "sizes_of",
    "switched_off",
    "with_optimizer",
    "zeros",
]
