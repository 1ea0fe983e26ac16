"""Schedules of pipelines by name: in which order each stage works on its microbatches."""

from tpusim.partition.schedules.make import SCHEDULES, make

__all__ = ["SCHEDULES", "make"]
