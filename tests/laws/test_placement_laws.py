"""Laws of the placement that is chosen: the same as if every candidate were simulated."""

import random

import pytest
from extent import seeds
from steps import PlacementCandidate, StepOnPlacements, planned_step
from test_any_plan import random_model, random_plan

from tpusim.base import PlanError
from tpusim.engine import CodeRun
from tpusim.hardware import Slice, candidates
from tpusim.models import Transformer
from tpusim.plan import Plan
from tpusim.simulation import explain_placement, simulate

PODS = (
    ("v4", "4x4x8", 1), ("v5p", "4x4x4", 1), ("v5e", "8x16", 1), ("v6e", "16x16", 1),
    ("7x", "2x2x4", 1), ("v5e", "4x8", 2), ("v4", "8x8x8", 1),
)  # fmt: skip


def drawn(seed: int) -> tuple[Transformer, Plan, Slice]:
    """A random plan whose mesh can lie on its slice in several ways."""
    rng = random.Random(seed)
    while True:
        pod = Slice(*rng.choice(PODS))
        model, plan = random_model(rng), random_plan(rng, pod)
        if len(candidates(pod, plan.mesh)) > 1:
            try:
                simulate(model, plan, pod, placement=candidates(pod, plan.mesh)[0])
            except PlanError:
                continue
            return model, plan, pod


def ways_of(model: Transformer, plan: Plan, pod: Slice) -> list[PlacementCandidate]:
    step = StepOnPlacements(planned_step(model, plan, pod), pod)
    laid = enumerate(candidates(pod, plan.mesh))
    return [PlacementCandidate(number, step.on(at)) for number, at in laid]


@pytest.mark.parametrize("seed", seeds(16, default=0))
def test_the_chosen_placement_is_the_first_of_the_fastest(seed: int) -> None:
    model, plan, pod = drawn(seed)
    laid = candidates(pod, plan.mesh)
    times = [simulate(model, plan, pod, placement=way).timeline.total_ps for way in laid]
    chosen = simulate(model, plan, pod)
    assert chosen.timeline.total_ps == min(times)
    assert chosen.placement == laid[times.index(min(times))]
    found = ways_of(model, plan, pod)
    assert [way.on.placement for way in found] == list(laid)
    examined = [way.examine() for way in found]
    assert all(
        way.least_ps <= least <= time
        for way, (least, _), time in zip(found, examined, times, strict=True)
    )
    same = {pattern: time for (_, pattern), time in zip(examined, times, strict=True)}
    assert [same[pattern] for _, pattern in examined] == times
    assert [way.simulate().run.timeline().total_ps for way in found] == times


def test_a_bound_alone_decides_where_nothing_runs_beside_the_core(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A step of synchronous collectives is as long as its bound, so one simulation is enough."""
    runs = []
    monkeypatch.setattr(
        "tpusim.simulation.placement_search.CodeRun",
        lambda *given, **how: runs.append(1) or CodeRun(*given, **how),
    )
    model = Transformer(layers=2, embed=4096, mlp=16384, heads=32, vocab=1000)
    mesh = {"data": 2, "fsdp": 8, "context": 2, "tensor": 8}
    plan, pod = Plan(mesh=mesh, seq_len=512, global_batch=256), Slice("v6e", "16x16")
    assert len(candidates(pod, mesh)) > 4
    result = simulate(model, plan, pod)
    assert sum(runs) == 1
    (way,) = [w for w in ways_of(model, plan, pod) if w.on.placement == result.placement]
    assert way.least_ps == result.timeline.total_ps


@pytest.mark.thorough
@pytest.mark.parametrize("seed", seeds(4))
def test_the_table_says_what_each_placement_takes(seed: int) -> None:
    model, plan, pod = drawn(seed)
    table = explain_placement(model, plan, pod)
    assert [row.placement for row in table.rows if row.taken] == [
        simulate(model, plan, pod).placement
    ]
    assert table.rows[0].taken
    for row in table.rows:
        known = simulate(model, plan, pod, placement=row.placement).step_time_s
        assert row.least_s <= known
        assert row.step_time_s in (None, known)
