"""Predicted against measured: published or own runs, simulated, and the errors."""

from tpusim.validation.measured_points import with_measured
from tpusim.validation.measured_runs import MeasuredRun, measured_runs
from tpusim.validation.outcome import RunChange, RunOutcome
from tpusim.validation.validate import Validation, validate

__all__ = [
    "MeasuredRun",
    "RunChange",
    "RunOutcome",
    "Validation",
    "measured_runs",
    "validate",
    "with_measured",
]
