"""Lowering: a partitioned graph becomes the operations of one device, as XLA for TPU makes it.

Here is the lowering of bodies, the forward and the backward pass of a microbatch or a stage. A body
goes through a list of passes, which decide how each collective
runs and in which order; what comes out becomes the operations of a `Program`.
"""

from tpusim.lowering.asked_place import AskedPlace as AskedPlace
from tpusim.lowering.asked_place import SharedLowerings as SharedLowerings
from tpusim.lowering.body_entries import Entry as Entry
from tpusim.lowering.collectives_by_generation import CircularPart as CircularPart
from tpusim.lowering.decisions import BodyChoices as BodyChoices
from tpusim.lowering.decisions import LoweringDecisions as LoweringDecisions
from tpusim.lowering.device_groups import group_of as group_of
from tpusim.lowering.evidence import LoweringEvidence as LoweringEvidence
from tpusim.lowering.evidence import borrowed_notes as borrowed_notes
from tpusim.lowering.evidence import lowering_evidence as lowering_evidence
from tpusim.lowering.lower_body import Bodies as Bodies
from tpusim.lowering.lower_body import BodyLowerer as BodyLowerer
from tpusim.lowering.lower_body import GradientDeps as GradientDeps
from tpusim.lowering.lowering_pass import LoweringPass as LoweringPass
from tpusim.lowering.offload import LAST as LAST
from tpusim.lowering.offload import names as names
from tpusim.lowering.op_work import flops_of as flops_of
from tpusim.lowering.op_work import idle_axes as idle_axes
from tpusim.lowering.operand_dtypes import cast_before as cast_before
from tpusim.lowering.operand_dtypes import check_dtypes as check_dtypes
from tpusim.lowering.operand_dtypes import matmul_key as matmul_key
from tpusim.lowering.pass_log import PassRecord as PassRecord
from tpusim.lowering.pass_log import record_passes as record_passes
from tpusim.lowering.pass_manager import all_passes as all_passes
from tpusim.lowering.pass_manager import check_switches as check_switches
from tpusim.lowering.pass_manager import switched_off as switched_off
from tpusim.lowering.ring_attention import ONWARD as ONWARD
