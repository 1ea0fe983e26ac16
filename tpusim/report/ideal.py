"""What a perfect compiler would gain."""

from dataclasses import replace

from tpusim.result import Result
from tpusim.simulation import simulate


def perfect_compiler(result: Result) -> Result | None:
    """The same run under the lowering `ideal`; None when the run has it, or one of its own."""
    if result.plan.lowering != "xla":
        return None
    return simulate(result.model, replace(result.plan, lowering="ideal"), result.pod)
