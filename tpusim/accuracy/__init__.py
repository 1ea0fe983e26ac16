"""How far off a prediction may be: the errors on measured runs that are like it."""

from tpusim.accuracy.error_range import COVERAGE, ErrorRange
from tpusim.accuracy.measured_errors import (
    BANDWIDTHS,
    Bandwidths,
    MeasuredErrors,
    best_bandwidths,
    expected_range,
    interval_score,
    left_out_by,
    measured_errors,
)
from tpusim.accuracy.residuals import Residual, read_residuals, residuals, residuals_text
from tpusim.accuracy.run_features import RunFeatures

__all__ = [
    "BANDWIDTHS",
    "COVERAGE",
    "Bandwidths",
    "ErrorRange",
    "MeasuredErrors",
    "Residual",
    "RunFeatures",
    "best_bandwidths",
    "expected_range",
    "interval_score",
    "left_out_by",
    "measured_errors",
    "read_residuals",
    "residuals",
    "residuals_text",
]
