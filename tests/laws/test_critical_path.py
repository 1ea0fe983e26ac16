"""Laws of the critical path: it covers the step, folded or not, and is bound as the costs say."""

import random

import pytest
from extent import seeds
from test_any_plan import PODS, SEVERAL, random_model, random_plan

from tpusim.hardware import Slice
from tpusim.models import Transformer
from tpusim.plan import Plan
from tpusim.results import Limit, Result, limits
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
