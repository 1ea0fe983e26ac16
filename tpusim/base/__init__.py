"""Errors, units, the phases of a step, and text files, for every package."""

from tpusim.base.errors import (
    CompileError,
    FileError,
    HardwareError,
    ModelError,
    PlanError,
    TpusimError,
    UnitError,
)
from tpusim.base.phase import Phase
from tpusim.base.units import format_bytes, format_rate, format_seconds, parse

__all__ = [
    "CompileError",
    "FileError",
    "HardwareError",
    "ModelError",
    "Phase",
    "PlanError",
    "TpusimError",
    "UnitError",
    "format_bytes",
    "format_rate",
    "format_seconds",
    "parse",
]
