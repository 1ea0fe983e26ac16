"""Predicted against measured: published or own runs, simulated, and the errors."""

from tpusim.validation.measured_points import with_measured as with_measured
from tpusim.validation.measured_runs import MeasuredRun as MeasuredRun
from tpusim.validation.measured_runs import measured_runs as measured_runs
from tpusim.validation.outcome import RunChange as RunChange
from tpusim.validation.outcome import RunOutcome as RunOutcome
from tpusim.validation.validate import Validation as Validation
from tpusim.validation.validate import validate as validate
