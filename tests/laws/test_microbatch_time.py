"""Each microbatch takes the same time: a step of k is k times one, and what happens once."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from extent import seeds
from test_any_plan import PODS, SEVERAL, random_model, random_plan

from tpusim.base import Phase
from tpusim.engine import Record
from tpusim.hardware import Slice
from tpusim.models import Transformer
from tpusim.plan import Plan
from tpusim.results import Result
from tpusim.simulation import simulate

ONE = (("v5e", "1x1"), ("v6e", "1x1"))
SMALL = [pod for pod in PODS if pod[1] not in ("16x16", "8x8x16")]


def drawn(seed: int, pod: Slice) -> tuple[Transformer, Plan]:
    """A model, and a plan of one microbatch that perhaps keeps something on the host."""
    rng = random.Random(seed)
    model, plan = random_model(rng), random_plan(rng, pod)
    offload = rng.sample(["layer_in", "v"], rng.randint(0, 2))
    batch = plan.global_batch // plan.microbatches
    moments = rng.random() < 0.2
    return model, plan.replace(
        microbatches=1, global_batch=batch, offload=offload, offload_optimizer=moments
    )


def of(plan: Plan, count: int) -> Plan:
    return replace(plan, microbatches=count, global_batch=count * plan.global_batch)


def core_ps(result: Result, chosen: Callable[[Record], bool]) -> int:
    """The core's picoseconds in the chosen operations, and in what it waits for before them."""
    core = (r for r in result.timeline.tasks if r.stream == "core")
    return sum(r.total_ps for r in (*core, *result.timeline.waits) if chosen(r))


def once(record: Record) -> bool:
    """Whether an operation of a step without microbatches is outside of their loop."""
    return record.phase is Phase.OPTIMIZER or record.name == "cast_weights"


def of_dispatch(record: Record) -> bool:
    """Whether the core waits until the host has started the step, as one of few tokens does."""
    return record.name == "dispatch"


def of_accumulators(record: Record) -> bool:
    return record.name.startswith("accumulate/") or record.name == "zero_accumulators"


@pytest.mark.parametrize("count", [2, 3, 64])
@pytest.mark.parametrize("seed", seeds(8))
def test_on_one_device_a_step_of_k_is_k_times_one_to_the_picosecond(seed: int, count: int) -> None:
    """And one optimizer step, and what adds up the gradients; nothing is there to contend."""
    pod = Slice(*ONE[seed % len(ONE)])
    model, plan = drawn(seed, pod)
    single, whole = (simulate(model, of(plan, k), pod) for k in (1, count))
    ran_once = core_ps(single, once)
    each = single.timeline.total_ps - ran_once - core_ps(single, of_dispatch)
    added = core_ps(whole, of_accumulators)
    assert core_ps(whole, once) == ran_once
    assert whole.timeline.total_ps == ran_once + count * each + added
    assert core_ps(single, of_accumulators) == 0 < added


@pytest.mark.parametrize("seed", seeds(16))
def test_each_further_microbatch_takes_the_same_time(seed: int) -> None:
    """From the second on, and on real links: to the picosecond, that of the slices' wait apart."""
    pod = Slice(*random.Random(seed).choice([*SMALL, *SEVERAL]))
    model, plan = drawn(seed, pod)
    two = simulate(model, of(plan, 2), pod)
    times = {k: simulate(model, of(plan, k), pod, placement=two.placement).timeline.total_ps
             for k in (3, 4, 11)}  # fmt: skip
    step = times[3] - two.timeline.total_ps
    rounding = 0 if pod.num_slices == 1 else 1
    assert abs(times[4] - times[3] - step) <= 2 * rounding
    assert abs(times[11] - times[3] - 8 * step) <= 9 * rounding
    assert step > 0


@pytest.mark.parametrize("seed", seeds(8))
def test_more_microbatches_of_one_batch_never_save_time_on_one_device(seed: int) -> None:
    """Smaller matmuls read the weights again, and gradients are added up."""
    pod = Slice(*ONE[seed % len(ONE)])
    model, plan = drawn(seed, pod)
    parts = [replace(plan, microbatches=k, global_batch=8) for k in (1, 2, 4, 8)]
    results = [simulate(model, each, pod) for each in parts]
    times = [each.timeline.total_ps for each in results]
    assert times == sorted(times)
    assert len({each.flops.model for each in results}) == 1
