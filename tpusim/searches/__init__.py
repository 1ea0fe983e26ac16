"""The proved best plans of a space, found by branch and bound."""

from tpusim.searches.best import SearchResult, search
from tpusim.searches.hunt import FoundPlan, SearchState
from tpusim.searches.objectives import OBJECTIVES
from tpusim.searches.plan_space import PlanSpace
from tpusim.searches.slices import slices_of

__all__ = [
    "OBJECTIVES",
    "FoundPlan",
    "PlanSpace",
    "SearchResult",
    "SearchState",
    "search",
    "slices_of",
]
