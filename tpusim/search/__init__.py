"""Sweeps: many plans of one model on one slice, as a table."""

from tpusim.search.space import PLACEMENTS, Candidate, Space, candidates
from tpusim.search.sweep import sweep

__all__ = ["PLACEMENTS", "Candidate", "Space", "candidates", "sweep"]
