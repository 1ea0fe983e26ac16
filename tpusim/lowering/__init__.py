"""Lowering: a partitioned graph becomes the operations of one device, as XLA for TPU makes it.

Here is the lowering of bodies, the forward and the backward pass of a microbatch or a stage. A body
goes through a list of passes, which decide how each collective
runs and in which order; what comes out becomes the operations of a `Program`.
"""

from tpusim.lowering.asked_place import AskedPlace, SharedLowerings
from tpusim.lowering.body_entries import Entry
from tpusim.lowering.decisions import BodyChoices, LoweringDecisions
from tpusim.lowering.device_groups import group_of
from tpusim.lowering.evidence import LoweringEvidence, borrowed_notes, lowering_evidence
from tpusim.lowering.gradients import GradientDeps
from tpusim.lowering.lower_body import Bodies, BodyLowerer
from tpusim.lowering.lowering_pass import LoweringPass
from tpusim.lowering.offload import names
from tpusim.lowering.operand_dtypes import cast_before, check_dtypes
from tpusim.lowering.pass_log import PassRecord, record_passes
from tpusim.lowering.pass_manager import all_passes, check_switches, switched_off
from tpusim.lowering.ring_attention import ONWARD

__all__ = [
    "ONWARD",
    "AskedPlace",
    "Bodies",
    "BodyChoices",
    "BodyLowerer",
    "Entry",
    "GradientDeps",
    "LoweringDecisions",
    "LoweringEvidence",
    "LoweringPass",
    "PassRecord",
    "SharedLowerings",
    "all_passes",
    "borrowed_notes",
    "cast_before",
    "check_dtypes",
    "check_switches",
    "group_of",
    "lowering_evidence",
    "names",
    "record_passes",
    "switched_off",
]
