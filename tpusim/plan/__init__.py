"""The plan: everything that a user decides about how a model runs on a slice."""

from tpusim.plan.attention_kernel import ONE_KERNEL, TWO_KERNELS, AttentionKernel
from tpusim.plan.axes import Axes, Rule, axes_of, check_known, check_once
from tpusim.plan.compiler import Compiler, Style
from tpusim.plan.context import ALL_TO_ALL, GATHER, RING, Context
from tpusim.plan.default_rules import DEFAULT_RULES, STYLE_RULES
from tpusim.plan.experts import DEFAULT_TILES, Experts
from tpusim.plan.input import NO_CODEC, Input
from tpusim.plan.input_fit import FittedInput, MeasuredStage, fit_stages
from tpusim.plan.input_rates import COMPRESSION_RATIOS, STORED_COMPRESSED, rate_lines
from tpusim.plan.keys import PLAN_CHOICES, PLAN_KEYS
from tpusim.plan.numerics import MATMUL_DTYPES, WIDE_DTYPES, Numerics
from tpusim.plan.optimizer import Optimizer
from tpusim.plan.pipeline import CIRCULAR, STAGE_AXES, Pipeline
from tpusim.plan.pipeline_schedules import make_schedule
from tpusim.plan.plan import Plan
from tpusim.plan.sharding import Sharding
from tpusim.plan.stages import edge_plan, inner_plan, part_bounds, stage_plan
from tpusim.plan.training import LOOPS, Training

__all__ = [
    "ALL_TO_ALL",
    "CIRCULAR",
    "COMPRESSION_RATIOS",
    "DEFAULT_RULES",
    "DEFAULT_TILES",
    "GATHER",
    "LOOPS",
    "MATMUL_DTYPES",
    "NO_CODEC",
    "ONE_KERNEL",
    "PLAN_CHOICES",
    "PLAN_KEYS",
    "RING",
    "STAGE_AXES",
    "STORED_COMPRESSED",
    "STYLE_RULES",
    "TWO_KERNELS",
    "WIDE_DTYPES",
    "AttentionKernel",
    "Axes",
    "Compiler",
    "Context",
    "Experts",
    "FittedInput",
    "Input",
    "MeasuredStage",
    "Numerics",
    "Optimizer",
    "Pipeline",
    "Plan",
    "Rule",
    "Sharding",
    "Style",
    "Training",
    "axes_of",
    "check_known",
    "check_once",
    "edge_plan",
    "fit_stages",
    "inner_plan",
    "make_schedule",
    "part_bounds",
    "rate_lines",
    "stage_plan",
]
