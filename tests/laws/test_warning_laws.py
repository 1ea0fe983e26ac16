"""Warnings on random plans: there is one where much is lost, and what it says to write helps."""

import pytest
from accounts import PartitionedStep
from extent import seeds
from test_any_plan import Case, plain_plan, tiled_plan

from tpusim.results import PlanResult
from tpusim.simulation import simulate

MUCH = 0.05
LITTLE_MORE = 1e-3


def simulated(case: Case) -> PlanResult:
    model, plan, pod = case
    return simulate(model, plan, pod)


@pytest.mark.parametrize("seed", seeds(600, default=8))
def test_what_is_lost_is_told(seed: int) -> None:
    """Masked scores are redundant and no device repeats them."""
    result = simulated((plain_plan if seed % 3 else tiled_plan)(seed))
    step, flops = PartitionedStep(result.model, result.plan), result.flops
    whole = float(flops.total - flops.optimizer)
    masked = float(flops.redundant) / whole - step.repeated() / step.total
    assert masked > -LITTLE_MORE
    assert masked < LITTLE_MORE or result.model.attention.kernel == "dot"
    kinds = {warning.kind for warning in result.warnings()}
    if flops.redundant > MUCH * flops.total:
        told = sum(work.share for work in step.repeated_work()) > MUCH
        assert ("repeated work" in kinds) == told
    else:
        assert "repeated work" not in kinds
    assert "padding" not in kinds or flops.padding > MUCH * flops.total


@pytest.mark.parametrize("seed", seeds(600, default=8))
def test_what_a_warning_says_to_write_is_faster(seed: int) -> None:
    result = simulated(plain_plan(seed))
    for warning in result.warnings():
        if not warning.keys:
            continue
        plan = result.plan.replace(**{key: dict(table) for key, table in warning.keys.items()})
        before, after = (PartitionedStep(result.model, each) for each in (result.plan, plan))
        if warning.kind == "repeated work":
            lost = warning.share * before.total
            assert before.repeated() - after.repeated() > 0.45 * lost
        assert simulate(result.model, plan, result.pod).step_time_s < result.step_time_s
