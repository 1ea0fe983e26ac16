"""Many plans of one model, each simulated, as a table."""

from tpusim.sweeps.dask_cluster import cluster
from tpusim.sweeps.scaling import Scaling, scaling
from tpusim.sweeps.search_axes import SearchAxis, SweepCandidate
from tpusim.sweeps.space import PLACEMENTS, Space, candidates
from tpusim.sweeps.sweep import sweep

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
