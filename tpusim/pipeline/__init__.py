"""Pipelines: the programs of their stages, or one circular program."""

from tpusim.pipeline.circular import CircularLoop, CircularParts, check_circular, circular_program
from tpusim.pipeline.stage_programs import schedule_of, stage_programs

__all__ = [
    "CircularLoop",
    "CircularParts",
    "check_circular",
    "circular_program",
    "schedule_of",
    "stage_programs",
]
