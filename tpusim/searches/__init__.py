"""The proved best plans of a space, found by branch and bound."""

from tpusim.searches.best import SearchResult as SearchResult
from tpusim.searches.best import search as search
from tpusim.searches.hunt import FoundPlan as FoundPlan
from tpusim.searches.hunt import SearchState as SearchState
from tpusim.searches.objectives import OBJECTIVES as OBJECTIVES
from tpusim.searches.plan_space import PlanSpace as PlanSpace
from tpusim.searches.slices import slices_of as slices_of
