"""Predicted against measured: published or own runs, simulated, and how wrong that was."""

from tpusim.validation.measured import Measured
from tpusim.validation.outcome import Outcome
from tpusim.validation.validation import Validation, validate, validate_file

__all__ = ["Measured", "Outcome", "Validation", "validate", "validate_file"]
