"""Diagnoses: where a profiled step differs from its prediction."""

from tpusim.diagnosis.diagnose import diagnose, stragglers_of
from tpusim.diagnosis.diagnosis import Diagnosis
from tpusim.diagnosis.files import write_diagnosis
from tpusim.diagnosis.finding import Finding

__all__ = ["Diagnosis", "Finding", "diagnose", "stragglers_of", "write_diagnosis"]
