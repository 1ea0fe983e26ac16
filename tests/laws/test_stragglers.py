"""Laws of stragglers: `S` is at least 1 and grows with each cause, and mending saves time."""

from functools import cache
from itertools import pairwise
from math import exp
from random import Random
from typing import Any

import numpy as np
import pytest

import tpusim as ts
from tpusim.training import StragglerSurvey, TrainingResult, TrainingRun, train_step

MODEL = ts.models.Transformer(layers=2, embed=256, mlp=1024, heads=2, vocab=500)
STEP_S = 2.0


@cache
def step(slices: int = 1) -> ts.PlanResult:
    mesh = {"fsdp": 64} if slices == 1 else {"dcn_data": slices, "fsdp": 64}
    plan = ts.Plan(mesh=mesh, seq_len=128, global_batch=64 * slices)
    return ts.simulate(MODEL, plan, ts.Slice("v4", "4x4x4", slices))


def trained(of: int = 1, steps: int = 1000, **asked: Any) -> TrainingResult:
    run = TrainingRun(
        steps=steps, step_time_s=STEP_S, initialization_s=0, compile_s=0, warm_up_s=0,
        stragglers=ts.Stragglers(**{"runs": 2, **asked}),
    )  # fmt: skip
    return train_step(step(of), run)


def survey(of: int = 1, **asked: Any) -> StragglerSurvey:
    found = trained(of, **asked).stragglers
    assert found is not None
    return found


def drawn(seed: int) -> dict[str, Any]:
    """Random causes, of which some are left out."""
    rng = Random(seed)
    causes: dict[str, Any] = {
        "chips": {"per_day": 10 ** rng.uniform(-3, 1), "duration_s": 10 ** rng.uniform(1, 4),
                  "slowdown": 1 + rng.random()},
        "pauses": {"per_hour": 10 ** rng.uniform(-1, 2), "seconds": 10 ** rng.uniform(-2, 1),
                   "synchronised": rng.random() < 0.3, "lead_s": rng.choice([0.0, 0.5, None])},
        "slices": {"shares": [1.0, rng.uniform(0.8, 1.0)]},
    }  # fmt: skip
    return {name: each for name, each in causes.items() if rng.random() < 0.8}


@pytest.mark.parametrize("seed", range(20))
def test_mending_a_cause_saves_no_more_than_all_of_them(seed: int) -> None:
    found = survey(2, **drawn(seed))
    assert found.factor >= 1
    for without in found.without.values():
        assert 1 <= without <= found.factor + 1e-12
    assert all(0 <= gain <= found.waste + 1e-12 for gain in found.gains().values())
    p50, p90, p99 = found.quantiles_s().values()
    assert STEP_S <= p50 <= p90 <= p99


def test_without_stragglers_nothing_is_longer() -> None:
    found = survey()
    assert (found.factor, found.waste, found.simulated.tolist()) == (1.0, 0.0, [1.0, 1.0])
    nothing = survey(
        2, chips={"per_day": 0, "compute": 0.5}, slices={"shares": [1.0, 1.0]},
        pauses={"per_hour": 0, "seconds": 9},
    )  # fmt: skip
    assert nothing.factor == 1
    assert nothing.simulated.tolist() == [1.0, 1.0]


CHIPS: dict[str, Any] = {"duration_s": 600.0, "per_day": 0.5, "compute": 0.7}
PAUSES: dict[str, Any] = {"per_hour": 30.0, "seconds": 1.0, "lead_s": 0.0}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("cause", "given", "key", "values"),
    [
        ("chips", CHIPS, "per_day", (0, 0.01, 1, 100)),
        ("chips", CHIPS, "duration_s", (10, 600, 1e4)),
        ("chips", CHIPS, "compute", (0.99, 0.9, 0.5)),
        ("chips", {"compute": 0.7}, "time_share", (0, 0.2, 1)),
        ("pauses", PAUSES, "per_hour", (0, 1, 100, 3000)),
        ("pauses", PAUSES, "seconds", (0, 0.1, 10)),
        ("pauses", PAUSES, "lead_s", (5, 0.5, 0)),
        ("slices", {}, "spread", (0, 0.01, 0.1)),
    ],
)
def test_more_of_a_cause_is_never_faster(
    cause: str, given: dict[str, Any], key: str, values: tuple[float, ...]
) -> None:
    slices = 2 if cause == "slices" else 1
    found = [survey(slices, **{cause: {**given, key: value}}).factor for value in values]
    assert all(fewer <= more for fewer, more in pairwise(found))
    assert found[0] < found[-1]


@pytest.mark.parametrize("seed", range(20))
def test_synchronised_pauses_are_never_worse(seed: int) -> None:
    rng = Random(seed)
    pauses: dict[str, Any] = {
        "per_hour": 10 ** rng.uniform(-1, 2.5), "seconds": 10 ** rng.uniform(-2, 1),
        "lead_s": rng.choice([0.0, 0.3, None]),
    }  # fmt: skip
    each, at_once = (
        survey(pauses={**pauses, "synchronised": each}).factor for each in (False, True)
    )
    assert at_once <= each


@pytest.mark.parametrize("per_hour", [0.5, 5, 50])
def test_the_share_of_the_steps_hit_is_that_of_independent_hosts(per_hour: float) -> None:
    pauses = {"per_hour": per_hour, "seconds": 0.5, "lead_s": 0}
    chance, hosts = 1 - exp(-per_hour * STEP_S / 3600), 16
    for synchronised, share in ((False, 1 - (1 - chance) ** hosts), (True, chance)):
        found = survey(pauses={**pauses, "synchronised": synchronised})
        assert found.mix.delayed_share == pytest.approx(share, rel=1e-9)


def test_synchronised_pauses_cost_their_length() -> None:
    found = survey(pauses={"per_hour": 60, "seconds": 3, "lead_s": 0, "synchronised": True})
    assert found.factor == pytest.approx(1 + 60 * 3 / 3600, rel=1e-9)


def test_a_lead_of_a_step_makes_a_step_as_long_as_its_longest_pause() -> None:
    """`T + max(0, pause - T)`: only two shorter pauses in one step delay it, by less than T."""
    found = survey(pauses={"per_hour": 2, "seconds": 1.9})
    assert found.quantiles_s()[0.99] == STEP_S
    assert 1 <= found.factor <= 1 + 16 * (2 * STEP_S / 3600) ** 2 / 2
    found = survey(pauses={"per_hour": 2, "seconds": 50})
    assert found.quantiles_s()[0.99] == pytest.approx(50)


@pytest.mark.parametrize("seed", range(6))
def test_random_runs_agree_with_the_closed_form(seed: int) -> None:
    rng = Random(seed)
    found = survey(
        steps=100_000, runs=20, seed=seed,
        chips={"per_day": rng.uniform(0.5, 5), "duration_s": 200, "slowdown": rng.uniform(1, 1.3)},
        pauses={"per_hour": rng.uniform(0, 3), "seconds": rng.uniform(0, 1), "lead_s": 0},
    )  # fmt: skip
    assert found.simulated.mean() == pytest.approx(found.factor, rel=0.01)


def test_the_step_of_a_run_is_longer_by_the_mean_factor() -> None:
    found = trained(pauses=PAUSES, steps=10_000)
    assert found.stragglers is not None
    assert found.step_time_s == STEP_S * found.stragglers.factor
    assert found.wall_s.value == pytest.approx(10_000 * found.step_time_s)


def test_a_slow_chip_takes_as_long_as_its_simulation() -> None:
    pod = ts.Slice("v4", "4x4x4", slow={"chips": [{"at": [1, 2, 3], "compute": 0.6}]})
    slow = ts.simulate(MODEL, step().plan, pod).step_time_s / step().step_time_s
    found = survey(chips={"time_share": 1, "compute": 0.6})
    assert found.factor == pytest.approx(slow, rel=1e-9)
    assert slow > 1.01


def test_failures_and_stragglers_work_together() -> None:
    given: dict[str, Any] = {
        "steps": 1000, "failures": {"runs": 5, "slowdown": 1.1}, "checkpoints": {"every": 100},
    }  # fmt: skip
    asked: Any = {"pauses": PAUSES, "runs": 1}
    both = TrainingRun(step_time_s=STEP_S, stragglers=asked, **given)
    alone = TrainingRun(step_time_s=STEP_S * survey(pauses=PAUSES).factor, **given)
    first, second = (train_step(step(), run) for run in (both, alone))
    assert first.wall_s == pytest.approx(second.wall_s, rel=1e-9)
    assert {"failures", "stragglers"} <= first.facts().keys()


def test_the_same_seed_gives_the_same_runs() -> None:
    asked: dict[str, Any] = {"chips": CHIPS, "pauses": PAUSES, "runs": 5}
    first, again, other = (survey(**asked, seed=seed) for seed in (1, 1, 2))
    assert first.facts() == again.facts()
    assert str(trained(**asked, seed=1)) == str(trained(**asked, seed=1))
    assert not np.array_equal(first.simulated, other.simulated)
