"""Training runs with failures: what they print, what they refuse, and what would help."""

import json
from dataclasses import replace
from typing import Any

import pytest
from extent import thorough

import tpusim as ts
from tpusim.base import TpusimError
from tpusim.failures import CAUSES, Failures, mean_time_to_failure, unit_chips, units_of
from tpusim.training import Checkpoints, TrainingRun, failure_advice, train_step
from tpusim.training.result import BUCKETS

MODEL = ts.models.Transformer(layers=4, embed=512, mlp=2048, heads=4, vocab=1000)
PLAN = ts.Plan(mesh={"fsdp": 64}, seq_len=128, global_batch=128)
STEP = ts.simulate(MODEL, PLAN, ts.Slice("v4", "4x4x4"))
SLICES = ts.Slice("v5e", "4x4", 4)
SLICED = ts.simulate(MODEL, PLAN.replace(mesh={"dcn_data": 4, "fsdp": 16}), SLICES)
OFTEN: dict[str, Any] = {"machine": {"per_day": 0.2, "repair_s": 10_000}, "job": 4}
GIVEN: dict[str, Any] = {"step_time_s": 10.0, "initialization_s": 60.0, "compile_s": 100.0}


def run(failures: dict[str, Any] | None = None, **changes: Any) -> TrainingRun:
    asked = Failures(**{"runs": 60, "slowdown": 1.02, "causes": OFTEN} | (failures or {}))
    saves = Checkpoints(every=100, time_s=20.0)
    given = GIVEN | {"steps": 50_000, "checkpoints": saves, "failures": asked}
    return TrainingRun(**given | changes)


def test_the_buckets_sum_to_the_wall_time() -> None:
    found = train_step(STEP, run())
    assert sum(each.value for each in found.buckets.values()) == pytest.approx(found.wall_s.value)
    assert found.buckets["GOODPUT"].value == pytest.approx(500_000)
    assert found.wall_s.low < found.wall_s.value < found.wall_s.high
    assert found.failures is not None
    assert found.failures.mean_s == pytest.approx(found.failures.expected_s, rel=0.02)
    text = str(found)
    for word in ("failures    every", "closed form", "machine", "spares used", "WASTED_PROGRESS"):
        assert word in text
    facts = json.loads(json.dumps(found.facts()))
    assert facts["failures"]["causes"][0]["failures"] > 0


def test_the_same_seed_gives_the_same_bytes() -> None:
    one, other = (json.dumps(train_step(STEP, run()).facts()) for _ in range(2))
    assert one == other
    assert one != json.dumps(train_step(STEP, run({"seed": 1})).facts())


def test_a_run_without_failures_has_none_of_their_buckets() -> None:
    found = train_step(STEP, replace(run(), failures=None))
    assert tuple(found.buckets) == tuple(BUCKETS)
    assert "failures" not in found.facts()
    never = dict.fromkeys(CAUSES, 0)
    quiet = train_step(STEP, run({"causes": never}))
    assert quiet.wall_s.value == pytest.approx(found.wall_s.value)
    assert "never" in str(quiet)


def test_units_are_those_of_the_machine() -> None:
    pod = ts.Slice("v4", "16x16x16")
    assert units_of(pod) == {
        "machine": 1024, "chip": 4096, "cable": 6144, "switch": 48, "slice": 1, "job": 1,
    }  # fmt: skip
    assert unit_chips(pod) == 64
    assert unit_chips(SLICES) == 16
    assert units_of(SLICES)["switch"] == 0
    days = (mean_time_to_failure(CAUSES, units_of(pod)) or 0) / 86400
    assert 1 / days == pytest.approx(1024 * 8e-4 + 6144 * 5e-5 + 48 * 4e-4 + 1)


@pytest.mark.parametrize(
    ("failures", "changes", "better"),
    [
        ({"spares": 0}, {}, {"spares": 4}),
        ({"compile_s": 600}, {}, {"compile_s": 0}),
        ({"causes": OFTEN | {"job": 10}}, {}, {"causes": OFTEN}),
        thorough({"replace_s": 2000}, {}, {"replace_s": 10}),
        thorough({"restore_s": 900}, {}, {"restore_s": 10}),
        thorough({"restart_s": 900}, {}, {"restart_s": 10}),
    ],
)
def test_what_helps_shortens_the_run(
    failures: dict[str, Any], changes: dict[str, Any], better: dict[str, Any]
) -> None:
    before, after = (
        train_step(STEP, run(failures | each, **changes)).wall_s.value for each in ({}, better)
    )
    assert after < before


@pytest.mark.thorough
def test_copies_in_memory_and_their_peers_save_steps() -> None:
    def lost(**saves: Any) -> float:
        checkpoints = Checkpoints(every=500, time_s=20.0, **saves)
        found = train_step(STEP, run(checkpoints=checkpoints)).failures
        assert found is not None
        return found.lost_steps

    assert lost(memory_every=10) < lost(memory_every=10, peers=False) < lost()


def test_an_elastic_run_goes_on_with_fewer_slices() -> None:
    found = train_step(SLICED, run({"elastic": True, "spares": 0}))
    waiting = train_step(SLICED, run({"spares": 0}))
    assert found.wall_s.value < waiting.wall_s.value
    assert found.buckets["ELASTIC_SLICE_DOWN"].value > 0
    assert waiting.buckets["ELASTIC_SLICE_DOWN"].value == 0


def test_spares_are_paid_for() -> None:
    none, two = (train_step(STEP, run({"spares": spares})) for spares in (None, 2))
    assert two.chip_hours.value == pytest.approx(two.wall_s.value * 64 * 3 / 3600)
    assert none.chip_hours.value == pytest.approx(none.wall_s.value * 64 / 3600)


def test_advice_finds_what_is_wrong_with_a_run() -> None:
    saves = Checkpoints(every=25, mode="blocking", time_s=30.0)
    result = train_step(STEP, run({"spares": 0, "compile_s": 300.0}, checkpoints=saves))
    advice = failure_advice(result)
    titles = [each.title for each in advice.changes]
    assert advice.interval is not None
    assert advice.interval.every == pytest.approx(advice.interval.daly, rel=0.02)
    assert any(title.startswith("failures.spares") for title in titles)
    assert any(title.startswith("train.checkpoints.every") for title in titles)
    assert "failures.compile_s = 0.0" in titles
    assert 'train.checkpoints.mode = "asynchronous"' in titles
    walls = [each.mean_s for each in advice.changes]
    assert walls == sorted(walls)
    assert max(walls) < advice.base.mean_s
    assert "shorter" in str(advice)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"runs": 0}, "failures.runs is 0; it must be a whole number of at least 1"),
    ({"seed": -1}, "failures.seed is -1; write a whole number from 0"),
    ({"spares": 1.5}, "failures.spares is 1.5; write a whole number from 0"),
    ({"elastic": "yes"}, "failures.elastic is 'yes'; write true or false"),
    ({"slowdown": 0.9}, "failures.slowdown is 0.9; write the time of a step"),
    ({"causes": 3}, "failures.causes is 3; write a table such as"),
    ({"causes": {"machines": 1}}, "failures.causes has no 'machines'"),
    ({"causes": {"machine": -1}}, "failures.causes.machine.per_day is -1; write a number from 0"),
    ({"causes": {"machine": {"rate": 1}}}, "failures.causes.machine has no 'rate'"),
    ({"causes": {"machine": {"hang_share": 2}}}, "hang_share is 2; write a number from 0 to 1"),
    ({"elastic": True, "displaces": True}, "has both elastic and displaces"),
    ({"restart_s": -1}, "failures.restart_s is -1; write seconds"),
]


@pytest.mark.parametrize(("given", "sentence"), BAD)
def test_bad_input_is_one_sentence(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TpusimError) as caught:
        Failures(**given)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("failures", "changes", "sentence"),
    [
        ({"elastic": True}, {}, "is one slice, without which nothing is left"),
        ({"causes": {"job": 5000}}, {}, "makes no progress: it fails every 17.3 s"),
        (
            {"causes": {"job": 300}},
            {"checkpoints": Checkpoints(every=100, time_s=3000.0)},
            "makes no progress",
        ),
        ({"causes": {"job": 3}}, {"checkpoints": None}, "there is no checkpoint"),
        ({"runs": 100_000, "causes": {"job": 100}}, {}, "failures to simulate; write at most"),
    ],
)
def test_runs_that_cannot_be_are_one_sentence(
    failures: dict[str, Any], changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(TpusimError) as caught:
        train_step(STEP, run(failures, **changes))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_copies_divide_checkpoints() -> None:
    with pytest.raises(TpusimError, match="does not divide every, 100"):
        Checkpoints(every=100, memory_every=30)


def test_every_number_of_a_cause_changes_the_run() -> None:
    base = train_step(STEP, run({"spares": 1})).wall_s.value
    for key, value in {
        "per_day": 0.4, "repair_s": 1000, "detection_s": 300, "hang_share": 0.9, "shape": 0.5,
    }.items():  # fmt: skip
        causes = OFTEN | {"machine": OFTEN["machine"] | {key: value}}
        changed = train_step(STEP, run({"spares": 1, "causes": causes})).wall_s.value
        assert changed != base, key
    noticed = OFTEN | {"machine": OFTEN["machine"] | {"notice_s": 300}}
    assert train_step(STEP, run({"spares": 1, "causes": noticed})).wall_s.value != base


def test_failures_are_a_table_too() -> None:
    asked = run()
    assert replace(asked, failures={"spares": 2}).failures == Failures(spares=2)  # type: ignore[arg-type]
    with pytest.raises(TpusimError, match="write a section"):
        replace(asked, failures=3)  # type: ignore[arg-type]
