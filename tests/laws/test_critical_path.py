"""Laws of the critical path: it covers the step, folded or not, and is bound as the costs say."""

import random

import pytest
from accounts import LaneBounds, LaneMachine
from extent import sample, seeds
from random_programs import Generator
from test_any_plan import PODS, SEVERAL, random_model, random_plan
from test_device_classes import PODS as SLOW_PODS
from test_device_classes import random_slow
from test_pipelines import CASES, piped

from tpusim.costs import CostedProgram
from tpusim.engine import run
from tpusim.hardware import Slice, load_chip
from tpusim.models import Transformer
from tpusim.plan import Plan
from tpusim.results import Limit, Result, core_ps, limits
from tpusim.results.critical_path import lane_path, tasks_by_name
from tpusim.simulation import simulate


def random_run(seed: int) -> tuple[Transformer, Plan, Slice]:
    rng = random.Random(seed)
    pod = Slice(*rng.choice((*PODS, *SEVERAL)))
    model, plan = random_model(rng), random_plan(rng, pod)
    if rng.random() < 0.3:
        plan = plan.replace(input_s=10 ** rng.uniform(-4, 0))
    return model, plan, pod


def parts(result: Result) -> dict[tuple[str, str], int]:
    return {
        (each.resource, label): ps for each in limits(result) for label, ps in each.does_ps.items()
    }


def covers(result: Result) -> tuple[Limit, ...]:
    """The limits of a result, whose picoseconds sum to the step's."""
    found = limits(result)
    assert sum(each.picoseconds for each in found) == result.timeline.total_ps
    assert all(ps > 0 for each in found for ps in each.does_ps.values())
    shares = [each.share for each in found]
    assert shares == sorted(shares, reverse=True)
    return found


@pytest.mark.parametrize("seed", seeds(100, default=8))
def test_the_path_covers_the_step_folded_or_not(seed: int) -> None:
    model, plan, pod = random_run(seed)
    folded = simulate(model, plan, pod)
    covers(folded)
    assert parts(folded) == parts(simulate(model, plan, pod, fold=False))


class NoLinks(LaneMachine):
    """A machine for programs whose links have names of their own."""

    def slowest_link(self, task: object) -> str:
        return "a link"


def engine_path(program: CostedProgram, *, fold: bool) -> dict[tuple[str, str], int]:
    timeline = run([program], fold=fold)
    machine = NoLinks(load_chip("v4").device, dict(program.links))
    found = lane_path(timeline, 0, LaneBounds(tasks_by_name(program), {}, machine))
    assert sum(found.values()) == timeline.total_ps
    return {cell: ps for cell, ps in found.items() if ps}


@pytest.mark.parametrize("seed", seeds(300, default=15))
def test_the_path_of_any_program_covers_it_folded_or_not(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nested loops, transfers that wait for each other, and shared links.

    Streams have other names than the host's, whose tasks have none of these.
    """
    monkeypatch.setattr("random_programs.STREAMS", ("gather", "scatter", "copy"))
    program = Generator(seed, nesting=0.4).program()
    assert engine_path(program, fold=True) == engine_path(program, fold=False)


@pytest.mark.parametrize(("schedule", "model", "plan"), sample(CASES, every=14))
def test_the_paths_of_stages_cover_the_step(schedule: str, model: str, plan: str) -> None:
    """And their bubbles are those of the breakdown."""
    result = piped(schedule, model, plan)
    found = {limit.resource: limit.picoseconds for limit in covers(result)}
    bubbles = sum(ps for (label, _), ps in core_ps(result.timeline).items() if label == "bubble")
    assert abs(found.get("pipeline bubble", 0) - bubbles) <= len(core_ps(result.timeline))


@pytest.mark.parametrize("seed", seeds(30, default=1))
def test_the_paths_of_devices_that_differ_cover_the_step(seed: int) -> None:
    rng = random.Random(seed)
    chip, shape, slices = rng.choice(SLOW_PODS)
    healthy = Slice(chip, shape, slices)
    pod = Slice(chip, shape, slices, slow=random_slow(rng, healthy))
    covers(simulate(random_model(rng), random_plan(rng, pod), pod))
