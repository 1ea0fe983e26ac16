"""The reader of compiled programs in pieces: HLO, its work, what it becomes."""

from tpusim.compiler.compiled import TESTED, UNTIL, Until
from tpusim.compiler.flops import lowered_flops
from tpusim.compiler.hlo.attributes import callees, op_name
from tpusim.compiler.hlo.hlo_files import format_header, read_hlo_file, split_header
from tpusim.compiler.hlo.module import Computation, HloModule, Instruction, SourceFrame
from tpusim.compiler.hlo.parser_process import HloParser
from tpusim.compiler.hlo.read import encoded_body, read_module
from tpusim.compiler.to_program.collective_metadata import collective_algorithm, unnoted_algorithm
from tpusim.compiler.to_program.device_ids import DeviceIds
from tpusim.compiler.to_program.translate_module import BEFORE_CODE, translate_module
from tpusim.compiler.work.instruction_work import InstructionWork, instruction_work, is_free
from tpusim.compiler_check.compare_collectives import (
    CollectiveTraffic,
    ComparedCollective,
    same_algorithm_share,
    same_mode_share,
)
from tpusim.compiler_check.compare_parts import ComparedPart
from tpusim.compiler_check.conclusion import ComparedHbm, conclusion
from tpusim.compiler_check.differences import Difference, grouped, ranked_differences, short_names

__all__ = [
    "BEFORE_CODE",
    "TESTED",
    "UNTIL",
    "CollectiveTraffic",
    "ComparedCollective",
    "ComparedHbm",
    "ComparedPart",
    "Computation",
    "DeviceIds",
    "Difference",
    "HloModule",
    "HloParser",
    "Instruction",
    "InstructionWork",
    "SourceFrame",
    "Until",
    "callees",
    "collective_algorithm",
    "conclusion",
    "encoded_body",
    "format_header",
    "grouped",
    "instruction_work",
    "is_free",
    "lowered_flops",
    "op_name",
    "ranked_differences",
    "read_hlo_file",
    "read_module",
    "same_algorithm_share",
    "same_mode_share",
    "short_names",
    "split_header",
    "translate_module",
    "unnoted_algorithm",
]
