"""Training runs: closed forms of their time and bytes, what they print, and bad input."""

import json
from dataclasses import replace
from math import ceil, inf
from typing import Any

import pytest

import tpusim as ts
from tpusim.base import TpusimError
from tpusim.training import Checkpoints, Evaluations, TrainingRun, checkpoint_cost, train_step
from tpusim.training.checkpoint import HOST_WRITE

MODEL = ts.models.Transformer(layers=4, embed=512, mlp=2048, heads=4, vocab=1000)
POD = ts.Slice("v4", "4x4x4")
PLAN = ts.Plan(mesh={"fsdp": 64}, seq_len=128, global_batch=128)
STEP = ts.simulate(MODEL, PLAN, POD)
GIVEN: dict[str, Any] = {
    "step_time_s": 2.0, "initialization_s": 100.0, "preparation_s": 10.0, "compile_s": 50.0,
    "warm_up_s": 5.0,
}  # fmt: skip


def bytes_a_parameter(**changes: Any) -> float:
    step = ts.simulate(MODEL, PLAN.replace(**changes), POD)
    cost = checkpoint_cost(step, Checkpoints(every=1))
    return cost.total_bytes / MODEL.parameter_count


def test_a_run_is_the_sum_of_its_parts() -> None:
    run = TrainingRun(
        steps=100, **GIVEN,
        evaluations=Evaluations(every=30, time_s=7.0),
        checkpoints=Checkpoints(every=40, mode="blocking", time_s=4.0),
    )  # fmt: skip
    found = train_step(STEP, run)
    assert found.wall_s.value == pytest.approx(165 + 100 * 2 + 3 * 7 + 3 * 4, abs=1e-6)
    assert found.wall_s.low == found.wall_s.high == found.wall_s.value
    assert {name: round(each.value, 6) for name, each in found.buckets.items()} == {
        "GOODPUT": 200.0, "TPU_INITIALIZATION": 100.0, "TRAINING_PREP": 10.0,
        "PROGRAM_STARTUP": 55.0, "DATA_LOADING_SYNC": 0.0,
        "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME": 12.0, "CUSTOM_BADPUT_EVENTS": 21.0,
    }  # fmt: skip
    assert found.goodput == pytest.approx(200 / 398)


def test_money_energy_and_carbon_follow_from_the_wall_time() -> None:
    found = train_step(STEP, TrainingRun(steps=1800, **GIVEN, price=3.0, grid=100.0))
    hours = 64 * (3600 + 165) / 3600
    assert found.chip_hours.value == pytest.approx(hours)
    assert found.cost_usd is not None
    assert found.cost_usd.value == pytest.approx(3 * hours)
    assert found.energy_j is not None
    assert found.energy_j.value == pytest.approx(hours * 170 * 3600)
    assert found.co2_kg is not None
    assert found.co2_kg.value == pytest.approx(hours * 0.170 * 1.10 * 0.1)


def test_a_chip_without_power_has_no_energy() -> None:
    pod = ts.Slice(POD.chip.replace(power=None), "4x4x4")
    found = train_step(replace(STEP, pod=pod), TrainingRun(steps=10))
    assert (found.energy_j, found.co2_kg) == (None, None)
    assert "unknown: v4" in str(found)


@pytest.mark.parametrize(
    ("length", "steps"),
    [({"steps": 7}, 7), ({"examples": 129}, 2), ({"tokens": 128 * 128 * 3 + 1}, 4)],
)
def test_the_last_step_is_whole(length: dict[str, Any], steps: int) -> None:
    found = train_step(STEP, TrainingRun(**length))
    assert found.steps == steps
    assert found.tokens == steps * 128 * 128


def test_the_range_of_the_step_carries_through() -> None:
    given = {**GIVEN, "step_time_s": None}
    found = train_step(STEP, TrainingRun(steps=10**6, **given))
    assert STEP.error_range is not None
    for end, factor in ((found.wall_s.low, "low"), (found.wall_s.high, "high")):
        expected = 165 + 10**6 * STEP.step_time_s * getattr(STEP.error_range, factor)
        assert end == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "nbytes"),
    [
        ({"optimizer": "adam"}, 12), ({"optimizer": "momentum"}, 8), ({"optimizer": "sgd"}, 4),
        ({"optimizer": "adam", "moment_dtype": "bf16"}, 8),
        ({"optimizer": "adam", "offload_optimizer": True}, 12),
        ({"mesh": {"data": 64}}, 12), ({"mesh": {"fsdp": 16, "tensor": 4}}, 12),
    ],
)  # fmt: skip
def test_a_checkpoint_has_the_state_once(changes: dict[str, Any], nbytes: int) -> None:
    assert bytes_a_parameter(**changes) == pytest.approx(nbytes, rel=1e-9)


def test_a_pipeline_saves_all_stages() -> None:
    changes = {"mesh": {"stage": 4, "fsdp": 16}, "microbatches": 8, "schedule": "1f1b"}
    assert bytes_a_parameter(**changes) == pytest.approx(12, rel=0.02)


@pytest.mark.parametrize(("mesh", "writers"), [({"fsdp": 64}, 16), ({"data": 64}, 1),
                                               ({"data": 4, "fsdp": 16}, 4)])  # fmt: skip
def test_the_hosts_of_one_replica_write(mesh: dict[str, int], writers: int) -> None:
    cost = checkpoint_cost(ts.simulate(MODEL, PLAN.replace(mesh=mesh), POD), Checkpoints(every=1))
    assert cost.writers == writers
    assert cost.write_s == pytest.approx(cost.total_bytes / writers / HOST_WRITE)
    assert cost.bound == "host"


def test_the_slowest_of_host_network_and_storage_bounds_a_write() -> None:
    total = checkpoint_cost(STEP, Checkpoints(every=1)).total_bytes
    stored = checkpoint_cost(STEP, Checkpoints(every=1, storage="1 MB/s"))
    assert (stored.bound, stored.write_s) == ("storage", pytest.approx(total / 1e6))
    sent = checkpoint_cost(STEP, Checkpoints(every=1, host="1 TB/s"))
    card = POD.chip.dcn_bandwidth * POD.chip.host_chips
    assert (sent.bound, sent.write_s) == ("network", pytest.approx(total / 16 / card))


def test_asynchronous_checkpoints_cost_their_copies_until_the_writer_is_late() -> None:
    def saved(every: int, **changes: Any) -> float:
        saves = Checkpoints(every=every, storage="10 MB/s", **changes)
        return train_step(STEP, TrainingRun(steps=100, **GIVEN, checkpoints=saves)).wall_s.value

    cost = checkpoint_cost(STEP, Checkpoints(every=1, storage="10 MB/s"))
    assert saved(50) == pytest.approx(365 + 2 * cost.copy_s + cost.write_s)
    assert saved(50, mode="blocking") == pytest.approx(365 + 2 * cost.seconds)
    assert cost.write_s > 2.0
    assert saved(1) == pytest.approx(165 + 2 + 100 * cost.seconds)


def test_an_evaluation_is_forward_passes() -> None:
    run = TrainingRun(steps=10, initialization_s=0, compile_s=0, warm_up_s=0,
                      evaluations=Evaluations(every=5, examples=1000))  # fmt: skip
    passes = 2 * ceil(1000 / 128)
    expected = 10 * STEP.step_time_s + passes * STEP.phases_s["forward"]
    assert train_step(STEP, run).wall_s.value == pytest.approx(expected, abs=1e-9)


def test_waits_for_input_are_their_own_bucket() -> None:
    slow = ts.simulate(MODEL, PLAN.replace(input_s=1.0), POD)
    found = train_step(slow, TrainingRun(steps=100))
    fed = STEP.step_time_s * 100
    assert found.buckets["DATA_LOADING_SYNC"].value == pytest.approx(100 - fed, rel=0.02)
    assert sum(each.value for each in found.buckets.values()) == pytest.approx(found.wall_s.value)


def test_more_of_anything_takes_no_less_time() -> None:
    base = TrainingRun(steps=100, checkpoints=Checkpoints(every=10))
    least = train_step(STEP, base).wall_s.value
    for changes in (
        {"steps": 101}, {"preparation_s": 1.0},
        {"evaluations": Evaluations(every=10, examples=1)},
        {"checkpoints": Checkpoints(every=5)},
        {"checkpoints": Checkpoints(every=10, mode="blocking")},
    ):  # fmt: skip
        assert train_step(STEP, replace(base, **changes)).wall_s.value > least


def test_the_facts_are_plain_data_and_the_report_sums() -> None:
    found = train_step(STEP, TrainingRun(tokens=1e9, checkpoints=Checkpoints(every=100)))
    facts = json.loads(json.dumps(found.facts()))
    total = sum(each["value"] for each in facts["buckets_s"].values())
    assert total == pytest.approx(facts["wall_s"]["value"])
    assert sum(facts["activities_s"].values()) == pytest.approx(total)
    assert facts["checkpoint"]["bytes"] == pytest.approx(12 * MODEL.parameter_count)
    for line in ("wall time   ", "  GOODPUT ", "checkpoint  ", "cost        ", "note        "):
        assert line in str(found)


def test_what_was_assumed_is_said_and_what_is_given_is_not() -> None:
    """Compile time, price and grid; each with the key that replaces it."""
    keys = ("train.compile_s", "train.price", "train.grid")
    assumed = " ".join(train_step(STEP, TrainingRun(steps=9)).notes)
    given = TrainingRun(steps=9, compile_s=50.0, price=1.0, grid=100.0)
    assert all(key in assumed for key in keys)
    assert not any(key in " ".join(train_step(STEP, given).notes) for key in keys)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TrainingRun(), "none of them is given; write one, such as tokens = 1e12"),
        (lambda: TrainingRun(tokens=1e9, steps=3), "tokens, steps are given; write one"),
        (lambda: TrainingRun(tokens=-1), "train.tokens is -1; write a number from 1 to 1e+18"),
        (lambda: TrainingRun(steps=1.5), "train.steps is 1.5; it must be a whole number"),
        (lambda: TrainingRun(steps=1, compile_s=-1), "train.compile_s is -1; write seconds"),
        (lambda: TrainingRun(steps=1, step_time_s=0), "write seconds above 0, or leave it out"),
        (lambda: TrainingRun(steps=1, price="3"), "train.price is '3'; write a number"),
        (lambda: TrainingRun(steps=1, checkpoints=5), "train.checkpoints is 5; write a table"),
        (lambda: Evaluations(every=0, examples=1), "train.evaluations.every is 0"),
        (lambda: Evaluations(every=1), "needs either examples, such as 10000, or their time_s"),
        (lambda: Checkpoints(every=1, mode="async"), "did you mean 'asynchronous'?"),
        (lambda: Checkpoints(every=1, storage="0 B/s"), "write at least 1 B/s, such as '50 GB/s'"),
        (lambda: Checkpoints(every=1, capacity="1"), "'1' has no unit"),
        (lambda: Checkpoints(every=1, host="1e-300 B/s"), "host is '1e-300 B/s'; write at least 1"),
        (lambda: TrainingRun(tokens=1e308), "train.tokens is 1e+308; write a number from 1 to"),
        (lambda: TrainingRun(steps=10**400), "train.steps is a number of 1329 bits; write at most"),
        (lambda: TrainingRun(steps=1, price=1e308), "train.price is 1e+308; write a number from 0"),
        (lambda: TrainingRun(steps=1, grid=1e308), "train.grid is 1e+308; write a number from 0"),
        (lambda: Evaluations(every=1, examples=10**400), "a number of 1329 bits; write at most"),
        (lambda: ts.Input(read_variation=1e290), "read_variation is 1e+290; write a number from 0"),
        (lambda: POD.chip.replace(price=1e308), "v4: price is 1e+308; write at most 1e+30"),
        (lambda: Checkpoints(every=1, kept=0), "train.checkpoints.kept is 0"),
        (lambda: train_step(STEP, {"steps": 3}), "give a ts.TrainingRun"),
        (
            lambda: train_step(STEP, TrainingRun(steps=10**8, checkpoints=Checkpoints(every=9))),
            "makes 11,111,111 checkpoints in 100,000,000 steps; write at least 100",
        ),
        (
            lambda: train_step(STEP, TrainingRun(
                steps=1, checkpoints=Checkpoints(every=1, capacity="1 GB", kept=9))),
            "9 checkpoints of transformer needs 1.",
        ),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(make: Any, words: str) -> None:
    with pytest.raises(TpusimError) as caught:
        make()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_largest_numbers_are_simulated() -> None:
    evaluations = Evaluations(every=10**18, time_s=1e9)
    made = train_step(STEP, TrainingRun(tokens=1e18, price=1e6, evaluations=evaluations))
    assert made.cost_usd is not None
    assert made.cost_usd.high < inf
    assert str(made)
