"""Calibrations: what a user's own measurements say of a chip."""

from tpusim.calibration.calibrate import calibrate

__all__ = ["calibrate"]
