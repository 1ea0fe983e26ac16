"""The check of a plan against the TPU compiler: its exported step, compiled, beside the plan."""

from tpusim.compiler_check.compare_parts import ComparedPart
from tpusim.compiler_check.comparison import TwinComparison, compare
from tpusim.compiler_check.plan_check import PlanCheck, check

__all__ = ["ComparedPart", "PlanCheck", "TwinComparison", "check", "compare"]
