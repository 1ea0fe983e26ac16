"""Sweeps: many plans of one model on one slice, as a table."""

from tpusim.search.dask_cluster import cluster
from tpusim.search.scaling import Scaling, scaling
from tpusim.search.search_axes import SearchAxis, SweepCandidate
from tpusim.search.space import PLACEMENTS, Space, candidates
from tpusim.search.sweep import sweep

__all__ = [
    "PLACEMENTS",
    "Scaling",
    "SearchAxis",
    "Space",
    "SweepCandidate",
    "candidates",
    "cluster",
    "scaling",
    "sweep",
]
