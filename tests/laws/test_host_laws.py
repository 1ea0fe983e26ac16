"""Laws of what the host does beside a step, over random models, plans and slices."""

import random
from dataclasses import replace

import pytest
from extent import seeds
from test_any_plan import PODS, SEVERAL, obeys_folded_and_not, random_model, random_plan

from tpusim.engine import picoseconds
from tpusim.hardware import Slice, load_chip
from tpusim.models import Transformer
from tpusim.plan import LOOPS, Plan
from tpusim.simulation import simulate

HOURS = 1e4


def drawn(seed: int) -> tuple[random.Random, Transformer, Plan, tuple[str, str, int]]:
    rng = random.Random(seed)
    where = rng.choice((*PODS, *SEVERAL))
    pod = Slice(*where)
    return rng, random_model(rng), random_plan(rng, pod), where


def on(where: tuple[str, str, int], dispatch_s: float) -> Slice:
    chip, shape, slices = where
    return Slice(load_chip(chip).replace(dispatch=dispatch_s), shape, slices)


@pytest.mark.parametrize("seed", seeds(40))
def test_a_step_is_the_longer_of_device_and_host(seed: int) -> None:
    """To the picosecond: so a host that does more never makes it faster, and a fast one nothing."""
    rng, model, plan, where = drawn(seed)
    alone = simulate(model, plan, on(where, 0.0))
    device_s = alone.step_time_s
    for share in (rng.random(), 1, 1 + rng.random()):
        dispatch_s, input_s = sorted((share * device_s * rng.random(), share * device_s))
        found = simulate(model, replace(plan, input_s=input_s), on(where, dispatch_s))
        host_ps = picoseconds(dispatch_s) + picoseconds(input_s)
        assert found.timeline.total_ps == max(alone.timeline.total_ps, host_ps)
        assert found.hbm_peak_bytes == alone.hbm_peak_bytes
        assert found.flops == alone.flops


@pytest.mark.parametrize("seed", seeds(10))
def test_a_synchronous_loop_adds_its_turnaround(seed: int) -> None:
    """To the picosecond, and once: a pipeline's other stages wait with the first."""
    _, model, plan, where = drawn(seed)
    pod = on(where, 0.0)
    alone, bound = (simulate(model, replace(plan, loop=loop), pod) for loop in LOOPS)
    added_ps = picoseconds(pod.chip.costs.turnaround)
    assert bound.timeline.total_ps == alone.timeline.total_ps + added_ps
    assert bound.placement == alone.placement
    assert bound.hbm_peak_bytes == alone.hbm_peak_bytes


@pytest.mark.parametrize("seed", seeds(40, 60))
def test_a_host_that_is_slow_obeys_the_laws_of_all_plans(seed: int) -> None:
    """Folded is unfolded, memory is given back, the breakdown sums to the step."""
    rng, model, plan, where = drawn(seed)
    input_s = rng.choice([1e-6, 1e-3, 1, HOURS])
    obeys_folded_and_not(model, replace(plan, input_s=input_s), Slice(*where))


@pytest.mark.parametrize("seed", seeds(60, 75))
def test_the_host_changes_no_placement(seed: int) -> None:
    """It makes all steps equal, but one of them leaves the device most time."""
    _, model, plan, where = drawn(seed)
    bound, free = (simulate(model, plan, on(where, seconds)) for seconds in (HOURS, 0.0))
    assert bound.timeline.total_ps == picoseconds(HOURS)
    assert bound.placement == free.placement
    assert bound.timeline.device_ps == free.timeline.total_ps
