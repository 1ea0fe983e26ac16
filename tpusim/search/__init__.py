"""Many plans of one model: sweeps, as a table; bounds; and the proved best of a space."""

from tpusim.search.best import OBJECTIVES, FoundPlan, SearchResult, SearchState, search
from tpusim.search.bound import PlanBounds, bound, bounds
from tpusim.search.dask_cluster import cluster
from tpusim.search.plan_arrays import PlanArrays
from tpusim.search.plan_space import PlanSpace, slices_of
from tpusim.search.scaling import Scaling, scaling
from tpusim.search.search_axes import SearchAxis, SweepCandidate
from tpusim.search.space import PLACEMENTS, Space, candidates
from tpusim.search.sweep import sweep

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
