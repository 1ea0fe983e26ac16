"""A run again with another plan, slice, placement or input pipeline."""

from collections.abc import Sequence

from tpusim.hardware import Placement, Slice
from tpusim.plan import Input, Plan
from tpusim.results import PlanResult
from tpusim.simulation.fed_step import fed
from tpusim.simulation.plan_run import run_plan


def run_changed(
    base: PlanResult,
    plan: Plan,
    pod: Slice,
    placement: Placement | None,
    given: Input | None = None,
    *,
    among: Sequence[Placement] | None = None,
) -> PlanResult:
    """Return the result of another plan of the model of a result.

    placement: None for the plan's own, or the best.
    given: the input pipeline in place of the run's, if any.
    among: placements from which the best is taken; None for all candidates.

    Raise PlanError as `simulate` does.
    """
    network, known = base.verdicts.network, base.input
    pipeline = given or (None if known is None else known.given)
    result = run_plan(
        base.model, plan, pod, fold=True, placement=placement, among=among, network=network
    )
    return result if pipeline is None else fed(result, pipeline)
