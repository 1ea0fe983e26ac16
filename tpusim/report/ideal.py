"""What a perfect compiler would gain."""

from dataclasses import replace

from tpusim.plan_result import PlanResult
from tpusim.result import Result
from tpusim.simulation import simulate


def perfect_compiler(result: Result) -> PlanResult | None:
    """The same run under the lowering `ideal`; None when the run has it, or one of its own."""
    planned = result.planned
    if planned is None or planned.plan.lowering != "xla":
        return None
    return simulate(planned.model, replace(planned.plan, lowering="ideal"), planned.pod)
