"""The bound of pipelines whose stages have unequal layers."""

import random
from collections.abc import Iterator
from itertools import accumulate
from statistics import median

import numpy as np
import pytest
from extent import seeds
from many_plans import LoopSeconds, StepParts
from schedules import slot_times
from test_any_plan import Case
from test_bound import pipelined_plan

from tpusim.base import TpusimError
from tpusim.bounds import PlanArrays, bound, bounds
from tpusim.bounds.pipeline import LayerLoops, pipelined_seconds
from tpusim.hardware import Slice
from tpusim.models import Transformer
from tpusim.plan import Plan, make_schedule
from tpusim.program import PassKind, Slot
from tpusim.simulation import simulate

BLOCK = 6
"""Plans of one test."""

UNLIKE = ({}, {}, {"wide_layers": 2, "wide_mlp": 4096}, {"window": 100, "global_every": 2})
"""Keys of a model: its layers are alike, or the first are wider, or every other one differs."""


def uneven_plan(seed: int) -> Case:
    """Return a pipeline whose parts have one to six layers."""
    rng = random.Random(seed)
    model, plan, pod = pipelined_plan(seed)
    stages, chunks = plan.stages, plan.pipeline.virtual_stages
    layers = [rng.choice([1, 1, 2, 3, 6]) for _ in range(stages * chunks)]
    if plan.active_schedule == "circular":
        layers = [layers[at // stages] for at in range(stages * chunks)]
    model = model.replace(layers=sum(layers), **rng.choice(UNLIKE))
    return model, plan.replace(stage_layers=layers), pod


def shares(numbers: range) -> Iterator[float]:
    """Yield the shares of the steps that bounds are; plans that are refused are left out."""
    for seed in numbers:
        model, plan, pod = uneven_plan(seed)
        try:
            result = simulate(model, plan, pod)
        except TpusimError:
            continue
        found = bounds(model, PlanArrays.of([(plan, pod)]))
        assert 0 < found.seconds[0] <= result.step_time_s, seed
        assert 0 < found.hbm_bytes[0] <= result.hbm_peak_bytes, seed
        yield float(found.seconds[0]) / result.step_time_s


@pytest.mark.thorough
@pytest.mark.parametrize("block", seeds(100, default=1))
def test_the_bounds_of_uneven_pipelines_are_below_their_steps_but_not_far(block: int) -> None:
    found = list(shares(range(BLOCK * block, BLOCK * (block + 1))))
    assert len(found) > BLOCK / 2
    assert median(found) > 0.5


@pytest.mark.parametrize("seed", [1, 79, 166])
def test_parts_of_one_layer_stack_no_gradients_and_the_bound_knows(seed: int) -> None:
    """Unequal parts, and a circular pipeline of parts of one layer, with gradients added up."""
    assert len(list(shares(range(seed, seed + 1)))) == 1


def test_parts_of_one_layer_and_of_several_share_no_body() -> None:
    """A loop of one iteration is none when it is compiled, whichever part is lowered first."""
    model = Transformer(layers=5, embed=256, mlp=1024, heads=8, vocab=1000)
    pod = Slice("v4", "2x2x1")
    for layers in ([1, 4], [4, 1]):
        plan = Plan(mesh={"stage": 2, "fsdp": 2}, stage_layers=layers, schedule="gpipe",
                    seq_len=128, global_batch=64, microbatches=4)  # fmt: skip
        programs = simulate(model, plan, pod).programs
        stacks = [str(program).count("stack/layers") > 0 for program in programs]
        assert stacks == [count > 1 for count in layers]


def random_pipeline(rng: random.Random) -> Plan:
    schedule = rng.choice(["gpipe", "1f1b", "zb-h1", "zb-h2", "interleaved"])
    stages, chunks = rng.randint(2, 6), rng.choice([2, 3]) if schedule == "interleaved" else 1
    layers = [rng.choice([1, 1, 2, 5]) for _ in range(stages * chunks)]
    return Plan(
        mesh={"stage": stages}, schedule=schedule, virtual_stages=chunks, stage_layers=layers,
        seq_len=128, global_batch=stages * 8, microbatches=stages * rng.choice([1, 2, 4, 8])
        if schedule[:2] in ("zb", "in") else rng.choice([1, 2, stages, 8]),
    )  # fmt: skip


@pytest.mark.parametrize("seed", seeds(300, default=40))
def test_a_bound_is_the_longest_wait_for_another_stage_and_below_all_slots(seed: int) -> None:
    """Slots are timed one after another, each when its stage is free and its operands are there."""
    rng = random.Random(seed)
    plan = random_pipeline(rng)
    stages, m = plan.stages, plan.microbatches
    layers, chunks = plan.pipeline.stage_layers, plan.pipeline.virtual_stages
    try:
        schedule = make_schedule(plan.active_schedule, stages, m, chunks)
    except TpusimError:
        return
    forward, backward, head = rng.randint(1, 9), rng.randint(1, 9), rng.choice([0, 7])

    def took(stage: int, slot: Slot) -> int:
        part = slot.chunk * stages + stage
        if slot.kind is PassKind.FORWARD:
            return 2 * layers[part] * forward + (head if part == len(layers) - 1 else 0)
        return layers[part] * backward * (1 if schedule.splits else 2)

    every = slot_times(schedule, took, lambda stage, slot: 0)
    step = max(each.end for each in every)
    loops = LayerLoops(("layers",), (sum(layers),), (1,))
    total = 2.0 * sum(layers) * (forward + backward)
    parts = StepParts(
        layers=total, head=head, loops={"layers": LoopSeconds(2.0 * forward, 2.0 * backward)}
    )
    plans = PlanArrays.of([(plan, Slice("v5e", "4x4"))])
    found = float(np.max(pipelined_seconds(plan, plans, loops, parts)))
    before = [0, *accumulate(layers)]
    each = 2 * forward + (0 if schedule.splits else 2 * backward)
    ramps = [before[b] * each + m * sum(layers[b::stages]) * 2 * (forward + backward)
             for b in range(stages)]  # fmt: skip
    assert max(*ramps, m * total / stages) <= found <= step
    if len(set(layers)) == 1 and plan.active_schedule in ("gpipe", "1f1b") and not head:
        assert found == step


def test_a_slow_stage_is_waited_for_from_either_end() -> None:
    """GPipe of 1, 3 and 1 layers, two microbatches: 2 x 3 layers, and one on either side."""
    plan = Plan(mesh={"stage": 3}, schedule="gpipe", stage_layers=[1, 3, 1], seq_len=128,
                global_batch=16, microbatches=2)  # fmt: skip
    parts = StepParts(layers=15.0, loops={"layers": LoopSeconds(1.0, 2.0)})
    plans = PlanArrays.of([(plan, Slice("v5e", "4x4"))])
    loops = LayerLoops(("layers",), (5,), (1,))
    found = float(np.max(pipelined_seconds(plan, plans, loops, parts)))
    assert found == (2 * 3 + 1 + 1) * 3.0


def test_a_cut_within_an_iteration_counts_for_neither_part() -> None:
    """Iterations of two layers in parts of 3, 3 and 2: one whole one in each."""
    plan = Plan(mesh={"stage": 3}, schedule="gpipe", stage_layers=[3, 3, 2], seq_len=128,
                global_batch=16, microbatches=2)  # fmt: skip
    parts = StepParts(loops={"layers": LoopSeconds(1.0, 2.0)})
    plans = PlanArrays.of([(plan, Slice("v5e", "4x4"))])
    loops = LayerLoops(("layers",), (4,), (2,))
    found = float(np.max(pipelined_seconds(plan, plans, loops, parts)))
    assert found == (2 + 2) * 3.0


def test_the_bound_of_an_uneven_pipeline_is_most_of_its_step() -> None:
    """Eight stages with two microbatches, where the mean of all stages would be a sixth of it."""
    model = Transformer(layers=36, embed=4096, mlp=14336, heads=32, kv_heads=8, vocab=32000)
    plan = Plan(
        mesh={"fsdp": 2, "stage": 8}, stage_layers=[8, *[4] * 7], seq_len=2048, global_batch=16,
        microbatches=2, schedule="gpipe", remat="full",
    )  # fmt: skip
    pod = Slice("v5p", "2x2x4")
    assert bound(model, plan, pod) > 0.85 * simulate(model, plan, pod).step_time_s
