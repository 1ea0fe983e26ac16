"""Laws of what plans and placements share: the same as if each were lowered and costed alone."""

import random
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
from extent import seeds
from test_any_plan import (
    Case,
    context_plan,
    expert_plan,
    latent_plan,
    plain_plan,
    plan_across_slices,
    quantised_plan,
)
from test_bound import pipelined_plan

from tpusim.base.errors import ModelError, PlanError
from tpusim.costs import cost_programs
from tpusim.engine import LaneCode, compile_lane
from tpusim.hardware import candidates
from tpusim.lowering import AskedPlace, record_passes
from tpusim.partition import gspmd, partition_graph
from tpusim.pipeline.planned_step import planned_graph, planned_step
from tpusim.simulation.placement_search import StepOnPlacements

KINDS = (
    plain_plan, expert_plan, latent_plan, context_plan, plan_across_slices, quantised_plan,
    pipelined_plan,
)  # fmt: skip
PLANS = 3
"""Plans of one model that are tried one after another, each on all candidate placements."""


def alike(seed: int) -> Iterator[Case]:
    """Plans of one model on one slice, in other meshes and with other batches.

    None where the model that is drawn contradicts itself.
    """
    rng = random.Random(seed)
    try:
        model, plan, pod = KINDS[seed % len(KINDS)](seed)
    except ModelError:
        return
    yield model, plan, pod
    for _ in range(PLANS - 1):
        sizes = list(plan.mesh.values())
        rng.shuffle(sizes)
        batch = plan.global_batch * rng.choice([1, 2, 8])
        mesh = rng.choice([plan.mesh, dict(zip(plan.mesh, sizes, strict=True))])
        yield model, replace(plan, mesh=mesh, global_batch=batch), pod


@pytest.mark.parametrize("seed", seeds(560, default=14))
def test_shared_programs_are_those_of_each_placement_alone(seed: int) -> None:
    """The whole step, its stages and its bodies are shared by what their lowering asked."""
    for model, plan, pod in alike(seed):
        try:
            step = planned_step(model, plan, pod)
            for at in candidates(pod, plan.mesh):
                shared = step.programs_on(at)
                with record_passes():
                    assert shared == step.lower(AskedPlace(pod, at, plan))
        except PlanError:
            continue


@pytest.mark.parametrize("seed", seeds(100, default=7))
def test_a_shared_partitioned_graph_is_that_of_each_plan_alone(seed: int) -> None:
    for model, plan, _ in alike(seed):
        try:
            graph = planned_graph(model, plan)
            shared = partition_graph(graph, plan)
        except PlanError:
            continue
        gspmd._known.cache_clear()
        assert shared == partition_graph(graph, plan)


@pytest.mark.parametrize("seed", seeds(100, default=7))
def test_exchanged_codes_are_those_of_each_placement_alone(seed: int) -> None:
    for model, plan, pod in alike(seed):
        try:
            step = StepOnPlacements(planned_step(model, plan, pod), pod)
            placed = [step.on(at) for at in candidates(pod, plan.mesh)]
        except PlanError:
            continue
        for each in placed:
            if isinstance(each.placed.code, LaneCode):
                (lane,) = cost_programs(each.programs, pod, each.placement)
                assert numbers(each.placed.code) == numbers(compile_lane(lane))


def numbers(code: LaneCode) -> Any:
    """A code without the identity of its steps."""
    steps = [tuple(getattr(step, f.name) for f in fields(step)) for step in code.steps]
    order = [getattr(each, "index", str(each)) for each in code.instructions]
    return steps, order, replace(code, steps=(), instructions=(), host=())
