"""Calibrated chips: bounds stay below steps, larger factors give longer steps, hops agree."""

import numpy as np
import pytest
from extent import seeds
from noisy_steps import PLANS, POD, trial_of, true_factors

from tpusim import Plan, bound, explain_collectives, simulate
from tpusim.calibration.measured_steps import TrialFactors
from tpusim.hardware import FACTORS, Slice


def plan_of(number: int) -> tuple:  # type: ignore[type-arg]
    model, mesh, length, batch = PLANS[number]
    return model, Plan(mesh=mesh, seq_len=length, global_batch=batch, remat="minimal")


@pytest.mark.parametrize("seed", seeds(20))
def test_a_bound_stays_below_the_step(seed: int) -> None:
    pod = trial_of(true_factors(seed, 0.3)).pod(POD)
    for number in range(seed % 2, len(PLANS), 2):
        model, plan = plan_of(number)
        assert bound(model, plan, pod) <= simulate(model, plan, pod).step_time_s


@pytest.mark.parametrize("seed", seeds(6))
def test_a_bound_stays_below_the_step_between_dies(seed: int) -> None:
    pod = trial_of(true_factors(seed, 0.3) | {"matmul": 1.1}).pod(Slice("7x", "2x2x1"))
    model, _ = plan_of(0)
    for mesh in ({"fsdp": 8}, {"fsdp": 4, "tensor": 2}, {"data": 8}):
        plan = Plan(mesh=mesh, seq_len=2048, global_batch=32)
        assert bound(model, plan, pod) <= simulate(model, plan, pod).step_time_s


@pytest.mark.parametrize("name", FACTORS)
def test_a_larger_factor_never_gives_a_shorter_step(name: str) -> None:
    for number in (0, 5):
        model, plan = plan_of(number)
        steps = [
            simulate(model, plan, trial_of({name: factor}).pod(POD)).step_time_s
            for factor in (1.0, 1.1, 1.5, 3.0)
        ]
        assert steps == pytest.approx(sorted(steps), rel=1e-9)


def test_a_collective_takes_its_factor_longer() -> None:
    model, plan = plan_of(4)
    usual, longer = (
        {(row.kind, row.axes, row.bytes): row.seconds for row in explain_collectives(result).rows}
        for result in (
            simulate(model, plan, POD),
            simulate(model, plan, trial_of({"all-reduce": 1.5}).pod(POD)),
        )
    )
    assert usual.keys() == longer.keys()
    for key, seconds in usual.items():
        factor = 1.5 if key[0] == "all-reduce" else 1.0
        assert longer[key] == pytest.approx(factor * seconds, rel=1e-6)


@pytest.mark.thorough
def test_hops_have_the_factor_too() -> None:
    model, plan = plan_of(0)
    pod = trial_of({"all-gather": 1.4, "reduce-scatter": 1.2}).pod(POD)
    flows = simulate(model, plan, pod).step_time_s
    hops = simulate(model, plan, pod, network="hops").step_time_s
    assert hops == pytest.approx(flows, rel=0.02)


def test_a_trial_of_ones_is_the_chip_itself() -> None:
    model, plan = plan_of(2)
    assert simulate(model, plan, TrialFactors().pod(POD)).step_time_s == pytest.approx(
        simulate(model, plan, POD).step_time_s, rel=1e-12
    )
    assert np.exp(TrialFactors().longer("hbm").logs[FACTORS.index("hbm")]) > 1
