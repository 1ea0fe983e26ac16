"""Laws of what plans and placements share: the same as if each were lowered and costed alone."""

import gc
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from typing import Any

import pytest
from extent import seeds
from steps import StepOnPlacements, partitioned_graph, planned_graph, planned_step
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

from tpusim.base import ModelError, PlanError
from tpusim.costs import cost_programs
from tpusim.engine import LaneCode, PipelineCode, TaskStep, compile_lane, compile_pipeline
from tpusim.frames import asked_place, choices_of
from tpusim.hardware import Slice, candidates, format_shape, legal_shapes
from tpusim.lowering import dependencies, fused_results, record_passes
from tpusim.models import Transformer
from tpusim.partition import gspmd
from tpusim.plan import Plan
from tpusim.simulation import simulate
from tpusim.simulation.loads import core_ps
from tpusim.simulation.placed_code import LaneCodes, PipelineCodes, WholeCodes

KINDS = (
    plain_plan, expert_plan, latent_plan, context_plan, plan_across_slices, quantised_plan,
    pipelined_plan,
)  # fmt: skip
PLANS = 3
"""Plans of one model that are tried one after another, each on all candidate placements."""


def alike(seed: int) -> Iterator[Case]:
    """Plans of one model on one slice, in other meshes and with other batches.

    The last is on chips of another generation. None where the model that is drawn contradicts
    itself.
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
    other = "v5p" if pod.chip.generation == "v4" else "v4"
    shapes = legal_shapes(other, pod.topology.chips)
    if shapes and pod.chip.devices == 1:
        yield model, plan, Slice(other, format_shape(shapes[0]), pod.num_slices)


def forget() -> None:
    """Forget all that bodies share, besides what `record_passes` leaves out."""
    for known in (dependencies._known, fused_results._known, gspmd._known):
        known.cache_clear()


@pytest.mark.parametrize("seed", seeds(560, default=1))
def test_shared_programs_are_those_of_each_placement_alone(seed: int) -> None:
    """The whole step, its stages and its bodies are shared by what their lowering asked."""
    found = []
    for model, plan, pod in alike(seed):
        try:
            step = planned_step(model, plan, pod)
            found += [(step, at, step.programs_on(at)) for at in candidates(pod, plan.mesh)]
        except PlanError:
            continue
    forget()
    for step, at, shared in found:
        with record_passes():
            assert shared == step.lower(asked_place(step.pod, at, choices_of(step.plan)))


@pytest.mark.parametrize("seed", seeds(100, default=2))
def test_a_shared_partitioned_graph_is_that_of_each_plan_alone(seed: int) -> None:
    for model, plan, _ in alike(seed):
        try:
            graph = planned_graph(model, plan)
            shared = partitioned_graph(graph, plan)
        except PlanError:
            continue
        forget()
        assert shared == partitioned_graph(graph, plan)


@pytest.mark.parametrize("seed", seeds(100, default=3))
def test_exchanged_codes_are_those_of_each_placement_alone(seed: int) -> None:
    """The bound that the search goes by is that of the code, too."""
    for model, plan, pod in alike(seed):
        try:
            step = StepOnPlacements(planned_step(model, plan, pod), pod)
            placed = [step.on(at) for at in candidates(pod, plan.mesh)]
        except PlanError:
            continue
        staged = any(program.segments for each in placed for program in each.programs)
        for each in placed:
            codes = each.alike.codes
            if pod.num_slices > 1:
                assert isinstance(codes, WholeCodes)
            else:
                assert isinstance(codes, (PipelineCodes, WholeCodes) if staged else LaneCodes)
                lanes = cost_programs(each.programs, pod, each.placement)
                alone = compile_pipeline(lanes) if staged else compile_lane(lanes[0])
                assert numbers(each.placed.code) == numbers(alone)
                assert each.placed.core_ps == core_ps(alone)


def numbers(code: LaneCode | PipelineCode) -> Any:
    """A code without the identity of its steps."""
    if isinstance(code, PipelineCode):
        parts = [(numbers(part.code), part.phase) for part in code.parts]
        stages = [
            (
                [(to, *step_numbers(step)) for to, step in stage.messages],
                [step_numbers(step) for step in stage.host],
                [
                    getattr(stage, f.name)
                    for f in fields(stage)
                    if f.name not in ("messages", "host")
                ],
            )
            for stage in code.stages
        ]
        return parts, stages, code.order
    steps = [step_numbers(step) for step in code.steps]
    order = [getattr(each, "index", str(each)) for each in code.instructions]
    return steps, order, replace(code, steps=(), instructions=(), host=())


def step_numbers(step: TaskStep) -> tuple[Any, ...]:
    return tuple(getattr(step, f.name) for f in fields(step))


def test_a_plan_whose_dictionaries_change_is_another_plan() -> None:
    model, mesh = Transformer(layers=2, embed=512, heads=8, mlp=2048, vocab=1000), {"fsdp": 16}
    plan = Plan(mesh=mesh, seq_len=512, global_batch=64)
    first = simulate(model, plan, "v5e-16")
    mesh["fsdp"] = 4
    assert plan.mesh == {"fsdp": 16}
    plan.mesh.update(fsdp=4, tensor=4)  # type: ignore[attr-defined]
    other = simulate(model, plan, "v5e-16")
    assert dict(other.program.axes) == {"fsdp": 4, "tensor": 4}
    again = simulate(model, Plan(mesh={"fsdp": 16}, seq_len=512, global_batch=64), "v5e-16")
    assert again.program == first.program
    assert again.step_time_s == first.step_time_s != other.step_time_s


@pytest.mark.parametrize("mesh", [{"fsdp": 16}, {"stage": 4, "fsdp": 4}])
def test_simulations_leave_no_cycles(mesh: dict[str, int]) -> None:
    """What they made is freed at once, so that their number does not matter."""
    model = Transformer(layers=4, embed=512, heads=8, mlp=2048, vocab=1000)

    def run(number: int) -> None:
        plan = Plan(mesh=mesh, seq_len=512, global_batch=64 * number, microbatches=4)
        simulate(model, plan, "v5e-16")

    run(1)
    gc.freeze()  # so that what was there before is not read
    gc.disable()
    try:
        for number in range(2, 12):
            run(number)
        assert gc.collect() < 10
    finally:
        gc.enable()
        gc.unfreeze()


@pytest.mark.thorough
def test_threads_share_what_is_known() -> None:
    model = Transformer(layers=2, embed=512, heads=8, mlp=2048, vocab=1000)

    def run(number: int) -> float:
        plan = Plan(mesh={"fsdp": 16}, seq_len=512, global_batch=16 * (1 + number % 5))
        return simulate(model, plan, "v5e-16").step_time_s

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(40))) == [*map(run, range(5))] * 8
