"""Pipelines: the programs of their stages, or one circular program."""

from tpusim.pipeline.circular import CircularLoop, CircularParts, circular_program
from tpusim.pipeline.circular_iteration import CircularShape
from tpusim.pipeline.stage_programs import schedule_of, stage_programs

__all__ = [
    "CircularLoop",
    "CircularParts",
    "CircularShape",
    "circular_program",
    "schedule_of",
    "stage_programs",
]
