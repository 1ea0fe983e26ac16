"""Measured systems of many kinds, from tables of either form to errors."""

from tpusim.validation.systems.systems import SystemsReport, validate_systems

__all__ = ["SystemsReport", "validate_systems"]
