"""Results of simulations, and their printed form."""

from tpusim.results.advice import FASTER, Advice, Change, ChangeKind
from tpusim.results.circular_iterations import is_pipeline_loop
from tpusim.results.critical_path import limits
from tpusim.results.fit import BORDERLINE, Fit, fit_of
from tpusim.results.input_use import InputUse
from tpusim.results.limit import Limit
from tpusim.results.lines import core_records, explain_lines, operation_of
from tpusim.results.plan_result import PlanResult, Verdicts, pipelined
from tpusim.results.replay_result import COSTS, ProgramOrigin, ReplayResult, UnknownOperation
from tpusim.results.resources import operations_by_name
from tpusim.results.result import (
    BUBBLE_LABEL,
    COMPUTE_LABELS,
    EXPOSED,
    PICO,
    Result,
    breakdown_ps,
    core_ps,
    link_shares,
    with_sorted_axes,
)
from tpusim.results.stage_uses import PAUSES, StageSlot, StageUse
from tpusim.results.straggler_table import DeviceClass, StragglerTable, stragglers
from tpusim.results.summary import LEAST_SHOWN, aligned, entry, verdict_need, verdict_reason
from tpusim.results.totals import StepContents, collective_axes, step_contents

__all__ = [
    "BORDERLINE",
    "BUBBLE_LABEL",
    "COMPUTE_LABELS",
    "COSTS",
    "EXPOSED",
    "FASTER",
    "LEAST_SHOWN",
    "PAUSES",
    "PICO",
    "Advice",
    "Change",
    "ChangeKind",
    "DeviceClass",
    "Fit",
    "InputUse",
    "Limit",
    "PlanResult",
    "ProgramOrigin",
    "ReplayResult",
    "Result",
    "StageSlot",
    "StageUse",
    "StepContents",
    "StragglerTable",
    "UnknownOperation",
    "Verdicts",
    "aligned",
    "breakdown_ps",
    "collective_axes",
    "core_ps",
    "core_records",
    "entry",
    "explain_lines",
    "fit_of",
    "is_pipeline_loop",
    "limits",
    "link_shares",
    "operation_of",
    "operations_by_name",
    "pipelined",
    "step_contents",
    "stragglers",
    "verdict_need",
    "verdict_reason",
    "with_sorted_axes",
]
