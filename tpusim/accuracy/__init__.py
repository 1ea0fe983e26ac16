"""How far off a prediction may be: the errors on measured runs that are like it."""

from tpusim.accuracy.error_range import COVERAGE as COVERAGE
from tpusim.accuracy.error_range import ErrorRange as ErrorRange
from tpusim.accuracy.measured_errors import BANDWIDTHS as BANDWIDTHS
from tpusim.accuracy.measured_errors import Bandwidths as Bandwidths
from tpusim.accuracy.measured_errors import MeasuredErrors as MeasuredErrors
from tpusim.accuracy.measured_errors import best_bandwidths as best_bandwidths
from tpusim.accuracy.measured_errors import expected_range as expected_range
from tpusim.accuracy.measured_errors import interval_score as interval_score
from tpusim.accuracy.measured_errors import left_out_by as left_out_by
from tpusim.accuracy.measured_errors import measured_errors as measured_errors
from tpusim.accuracy.memory_errors import HBM_COVERAGE as HBM_COVERAGE
from tpusim.accuracy.memory_errors import HbmErrors as HbmErrors
from tpusim.accuracy.memory_errors import HbmFeatures as HbmFeatures
from tpusim.accuracy.memory_errors import HbmOdds as HbmOdds
from tpusim.accuracy.memory_errors import HbmResidual as HbmResidual
from tpusim.accuracy.memory_errors import hbm_errors as hbm_errors
from tpusim.accuracy.memory_errors import hbm_odds as hbm_odds
from tpusim.accuracy.memory_errors import hbm_residuals_path as hbm_residuals_path
from tpusim.accuracy.memory_errors import hbm_residuals_text as hbm_residuals_text
from tpusim.accuracy.memory_errors import read_hbm_residuals as read_hbm_residuals
from tpusim.accuracy.residuals import Residual as Residual
from tpusim.accuracy.residuals import read_residuals as read_residuals
from tpusim.accuracy.residuals import residuals as residuals
from tpusim.accuracy.residuals import residuals_text as residuals_text
from tpusim.accuracy.run_features import RunFeatures as RunFeatures
