"""The comparison of a plan with the program that the compiler made of it."""

from collections.abc import Mapping

from tpusim.compiler_check.collective_moves import collective_moves, planned_key
from tpusim.compiler_check.compare_collectives import (
    compared_collectives,
    same_algorithm_share,
    same_mode_share,
)
from tpusim.compiler_check.compare_memory import compared_memory
from tpusim.compiler_check.compare_work import (
    ComparedSide,
    compared_flops,
    compared_times,
    compared_waits,
)
from tpusim.compiler_check.comparison import TwinComparison
from tpusim.compiler_check.core_times import CoreTimes
from tpusim.compiler_check.differences import ranked_differences
from tpusim.compiler_check.program_keys import ProgramKeys
from tpusim.compiler_check.step_names import SourceNames, StepNames, tensor_of
from tpusim.program import Compute, Single
from tpusim.results import PlanResult, ReplayResult


def compare(plan: PlanResult, program: ReplayResult, lines: Mapping[int, str]) -> TwinComparison:
    """Return a plan beside the program that the compiler made of its exported step.

    plan: the result of the plan, on the placement that the program has.
    program: the replay of the compiled program.
    lines: the operation of the graph (such as `layer/wq`) whose JAX stands in a line of the
        exported file; other lines belong to no operation.
    """
    names, source = StepNames.of(plan), SourceNames.of(program.program, lines)
    times = CoreTimes.of(plan), CoreTimes.of(program)

    def planned(op: Single) -> str:
        return _planned(op, names)

    def compiled(op: Single) -> str:
        places = (getattr(op, "source", ""), *getattr(op, "callers", ()))
        name = source.at(*places)
        return name if name in names.operations else ""

    sides = (
        ComparedSide(times[0], planned, names.lookups, names.products),
        ComparedSide(times[1], compiled, names.lookups, names.products),
    )
    moved = [(planned_key(move, names), move) for move in collective_moves(plan, times[0])]
    keys = ProgramKeys(names, source, tuple(collective_moves(program, times[1])), moved)
    collectives = compared_collectives(moved, keys.keyed())
    worked = compared_times(*sides)
    return TwinComparison(
        title=f"{plan.title} ({plan.pod.chips} chip{'s' * (plan.pod.chips > 1)})",
        placement=str(program.placement) or "nothing to place",
        plan_step_s=plan.step_time_s,
        program_step_s=program.step_time_s,
        plan_flops=float(plan.flops.total),
        program_flops=float(program.flops.total),
        plan_hbm_bytes=plan.hbm_peak_bytes,
        program_hbm_bytes=program.hbm_peak_bytes,
        same_mode_share=same_mode_share(collectives),
        same_algorithm_share=same_algorithm_share(collectives),
        times=worked,
        flops=compared_flops(plan, program),
        collectives=collectives,
        memory=compared_memory(plan, program, (planned, compiled), names.lookups),
        differences=ranked_differences(worked, compared_waits(*sides), collectives),
    )


def _planned(op: Single, names: StepNames) -> str:
    """Return the forward operation behind one of a plan; of a collective, that of its tensor."""
    if isinstance(op, Compute):
        return names.planned(op.scope)
    tensor, _ = tensor_of(op.scope)
    return names.makers.get(tensor) or names.readers.get(tensor, "")
