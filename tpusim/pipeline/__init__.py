"""Pipelines: the programs of their stages, or one circular program."""

from tpusim.pipeline.circular import CircularLoop as CircularLoop
from tpusim.pipeline.circular import CircularParts as CircularParts
from tpusim.pipeline.circular import circular_program as circular_program
from tpusim.pipeline.circular_iteration import CircularShape as CircularShape
from tpusim.pipeline.stage_programs import schedule_of as schedule_of
from tpusim.pipeline.stage_programs import stage_programs as stage_programs
