"""What sweeps, searches and bounds are made of."""

from tpusim.bounds.bodies import LoopSeconds, Rests, StepParts
from tpusim.sweeps.format import best_plans, sweep_text
from tpusim.sweeps.frame import cell, sweep_columns, sweep_frame
from tpusim.sweeps.processes import MOST_SUBMITTED, run_chunks
from tpusim.sweeps.rows import (
    PLAN_FITS,
    PLAN_REFUSED,
    RANGE_COLUMNS,
    RESULT_NUMBERS,
    breakdown_labels,
    simulate_chunk,
)

__all__ = [
    "MOST_SUBMITTED",
    "PLAN_FITS",
    "PLAN_REFUSED",
    "RANGE_COLUMNS",
    "RESULT_NUMBERS",
    "LoopSeconds",
    "Rests",
    "StepParts",
    "best_plans",
    "breakdown_labels",
    "cell",
    "run_chunks",
    "simulate_chunk",
    "sweep_columns",
    "sweep_frame",
    "sweep_text",
]
