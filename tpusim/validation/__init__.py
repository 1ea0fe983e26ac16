"""Predicted against measured: published or own runs, simulated, and the errors."""

from tpusim.validation.measured_points import with_measured
from tpusim.validation.measured_runs import MeasuredRun
from tpusim.validation.outcome import RunOutcome
from tpusim.validation.run_setup import RunSetup, SetupChange
from tpusim.validation.validate import Validation, validate, validate_file

__all__ = [
    "MeasuredRun",
    "RunOutcome",
    "RunSetup",
    "SetupChange",
    "Validation",
    "validate",
    "validate_file",
    "with_measured",
]
