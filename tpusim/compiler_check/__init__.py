"""The check of a plan against the TPU compiler: its exported step, compiled, beside the plan."""

from tpusim.compiler_check.compare_parts import ComparedPart as ComparedPart
from tpusim.compiler_check.comparison import TwinComparison as TwinComparison
from tpusim.compiler_check.comparison import compare as compare
from tpusim.compiler_check.plan_check import PlanCheck as PlanCheck
from tpusim.compiler_check.plan_check import check as check
from tpusim.compiler_check.serving_check import check_serving as check_serving
