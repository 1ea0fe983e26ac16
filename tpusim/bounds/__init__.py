"""What no plan can beat: lower bounds of step time and memory, on arrays of plans."""

from tpusim.bounds.plan_arrays import PlanArrays
from tpusim.bounds.plan_bounds import PlanBounds, bound, bounds

__all__ = ["PlanArrays", "PlanBounds", "bound", "bounds"]
