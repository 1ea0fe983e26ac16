"""Many plans of one model: sweeps, as a table; bounds; and the proved best of a space."""

from tpusim.exploration.best import SearchResult, search
from tpusim.exploration.bound import PlanBounds, bound, bounds
from tpusim.exploration.dask_cluster import cluster
from tpusim.exploration.hunt import FoundPlan, SearchState
from tpusim.exploration.objectives import OBJECTIVES
from tpusim.exploration.plan_arrays import PlanArrays
from tpusim.exploration.plan_space import PlanSpace
from tpusim.exploration.scaling import Scaling, scaling
from tpusim.exploration.search_axes import SearchAxis, SweepCandidate
from tpusim.exploration.slices import slices_of
from tpusim.exploration.space import PLACEMENTS, Space, candidates
from tpusim.exploration.sweep import sweep

__all__ = [
    "OBJECTIVES",
    "PLACEMENTS",
    "FoundPlan",
    "PlanArrays",
    "PlanBounds",
    "PlanSpace",
    "Scaling",
    "SearchAxis",
    "SearchResult",
    "SearchState",
    "Space",
    "SweepCandidate",
    "bound",
    "bounds",
    "candidates",
    "cluster",
    "scaling",
    "search",
    "slices_of",
    "sweep",
]
