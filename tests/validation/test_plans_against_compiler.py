"""Plans beside the compiled programs of experiments/plan_vs_compiler: how far apart they are.

The table has what the programs take; the plans are simulated here. The bounds are what was reached,
rounded up: a change that moves plans away from the compiler has to say so.
"""

import json
from functools import cache
from typing import NamedTuple

import pandas as pd
import pytest
from plan_vs_compiler import module, twins

import tpusim as ts
from tpusim.compiler_check.collective_moves import collective_moves
from tpusim.compiler_check.core_times import timed_operations
from tpusim.results import PlanResult


class Errors(NamedTuple):
    """Medians and 90th percentiles of relative differences of the step, and of HBM at the peak."""

    step: float
    step_p90: float
    hbm: float
    hbm_p90: float


@cache
def planned(sample: str, number: int) -> PlanResult:
    """The plan of a twin, simulated with today's lowering."""
    twin = module("table").SAMPLES[sample].draw(number)
    assert twin is not None
    return ts.simulate(*twin.arguments())


def errors(table: pd.DataFrame, sample: str = "twins") -> Errors:
    steps, peaks = [], []
    for row in table.itertuples():
        result = planned(sample, int(str(row.number)))
        steps.append(abs(result.step_time_s / float(str(row.program_step_s)) - 1))
        peaks.append(abs(result.hbm_peak_bytes / float(str(row.program_hbm_bytes)) - 1))
    found = [pd.Series(each).quantile(q) for each in (steps, peaks) for q in (0.5, 0.9)]
    return Errors(*map(float, found))


def check(found: Errors, bounds: Errors) -> None:
    for name, value, bound in zip(Errors._fields, found, bounds, strict=True):
        assert value <= bound, f"{name}: {value:.3f}, at most {bound}"


def test_plans_are_as_near_to_their_programs_as_was_reached() -> None:
    """Programs have the seconds of the costs at their compilation; those of plans have moved since.

    When attention was costed by kernel, and v6e and 7x by their operations, the 90th percentile of
    steps went from 0.204 to 0.207 for that reason alone.
    """
    check(errors(twins()[::12]), Errors(step=0.06, step_p90=0.208, hbm=0.048, hbm_p90=0.205))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("held_out", "bounds"),
    [
        (False, Errors(step=0.05, step_p90=0.16, hbm=0.043, hbm_p90=0.155)),
        (True, Errors(step=0.05, step_p90=0.135, hbm=0.047, hbm_p90=0.155)),
    ],
)
def test_all_plans_are_as_near_to_their_programs_as_was_reached(
    held_out: bool, bounds: Errors
) -> None:
    table = twins()
    check(errors(table[table.held_out.astype(bool) == held_out]), bounds)


@pytest.mark.thorough
def test_plans_of_systems_are_as_near_to_their_programs_as_was_reached() -> None:
    """All of them: of every fourth, other systems are nearer today than were."""
    table = twins("systems")
    check(errors(table, "systems"), Errors(step=0.072, step_p90=0.175, hbm=0.062, hbm_p90=0.235))
    check_work(table, flops=0.9, moved=0.57)


def check_work(table: pd.DataFrame, flops: float, moved: float) -> None:
    """At least these shares have FLOPs within 1 %, and bytes by axes and kind within 5 %."""
    of = module("report").FLOPS_TOLERANCE, module("report").BYTES_TOLERANCE
    rows = [(row, planned("systems", int(row["number"]))) for row in table.to_dict("records")]
    near = [abs(plan.flops.total / row["program_flops"] - 1) <= of[0] for row, plan in rows]
    assert sum(near) >= flops * len(rows)
    same = [
        moves_error(plan, json.loads(row["facts"])["collectives"]) <= of[1] for row, plan in rows
    ]
    assert sum(same) >= moved * len(rows)


def moves_error(plan: PlanResult, collectives: list[dict[str, object]]) -> float:
    """Bytes by axes and kind in which today's plan differs from the stored program."""
    now = [{**each, "plan": None} for each in collectives]
    for move in collective_moves(plan, timed_operations(plan)):
        side = {"kinds": {str(move.kind): move.wire_bytes}}
        now.append({"axes": list(move.axes), "plan": side, "program": None})
    error: float = module("report").bytes_error(now)
    return error


@pytest.mark.thorough
def test_plans_of_few_examples_are_as_near_to_their_programs_as_was_reached() -> None:
    """Images that are cut into the batch, on six generations.

    Without the two passes: 0.25 and 0.73 of the step, 0.41 and 0.68 of HBM.
    """
    table = twins("few_examples")
    check(errors(table, "few_examples"), Errors(step=0.036, step_p90=0.1, hbm=0.12, hbm_p90=0.2))


@pytest.mark.thorough
def test_many_plans_of_few_examples_are_near_in_step_and_hbm() -> None:
    """Twelve or more, on four generations or more, by 10 % of the step and 15 % of HBM."""
    near = set()
    for row in twins("few_examples").to_dict("records"):
        result, pod = planned("few_examples", int(row["number"])), row["generation"]
        step = result.step_time_s / row["program_step_s"] - 1
        peak = result.hbm_peak_bytes / row["program_hbm_bytes"] - 1
        examples = json.loads(row["plan"])["global_batch"] / row["devices"]
        if abs(step) < 0.1 and abs(peak) < 0.15 and examples < 8:
            near.add((pod, int(row["number"])))
    assert len(near) >= 12
    assert len({pod for pod, _ in near}) >= 4
