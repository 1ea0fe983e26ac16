"""Stragglers as a user writes them: bad input, run files, and what is printed."""

import json
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
from commands import said

import tpusim as ts
from tpusim.base import TpusimError
from tpusim.training import TrainingRun, train_step
from tpusim.training.straggler_forms import most_pauses, slowest_deviation

MODEL = ts.models.Transformer(layers=2, embed=256, mlp=1024, heads=2, vocab=500)
PLAN = ts.Plan(mesh={"fsdp": 64}, seq_len=128, global_batch=64)
POD = ts.Slice("v4", "4x4x4")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"chips": {"per_day": -1, "compute": 0.8}}, "stragglers.chips.per_day is -1; write a"),
        ({"chips": {"per_day": 1, "compute": 1.5}}, "stragglers.chips.compute is 1.5; write the"),
        ({"chips": {"per_day": 1, "hbm": 0}}, "stragglers.chips.hbm is 0; write the share"),
        ({"chips": {"per_day": 1}}, "stragglers.chips are as fast as any other"),
        ({"chips": {"compute": 0.8}}, "stragglers.chips needs per_day or time_share"),
        ({"chips": {"per_day": 1, "speed": 0.8}}, "stragglers.chips has no 'speed'"),
        ({"chips": {"per_day": 1, "duration_s": 0, "hbm": 0.5}}, "chips.duration_s is 0"),
        ({"chips": 3}, "stragglers.chips is 3; write a table"),
        ({"pauses": {"per_hour": -2, "seconds": 1}}, "stragglers.pauses.per_hour is -2"),
        ({"pauses": {"per_hour": 2}}, "stragglers.pauses has no 'seconds'"),
        ({"pauses": {"per_hour": 60, "seconds": 90}}, "longer than the 60 s between two pauses"),
        ({"slices": {"spread": -0.1}}, "stragglers.slices.spread is -0.1"),
        ({"slices": {}}, "stragglers.slices needs spread or shares"),
        ({"slices": {"shares": [1.0, 2.0]}}, "stragglers.slices.shares[1] is 2.0"),
        ({"runs": 0}, "stragglers.runs is 0"),
        ({"seed": -1}, "stragglers.seed is -1"),
        ({"seed": 1.0}, "stragglers.seed is 1.0"),
    ],
)  # fmt: skip
def test_bad_input_is_a_sentence(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TpusimError) as error:
        ts.Stragglers(**given)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"slices": {"spread": 0.02}}, "v4:4x4x4 is one slice, which differs from none"),
        ({"slices": {"shares": [1.0, 0.9]}}, "stragglers.slices.shares has 2, and v4:4x4x4 is 1"),
        ({"pauses": {"per_hour": 1e9, "seconds": 1e-9}}, "write fewer and longer pauses"),
    ],
)
def test_what_the_machine_refuses_is_a_sentence(given: dict[str, Any], sentence: str) -> None:
    run = TrainingRun(steps=10, step_time_s=1.0, stragglers=given)
    with pytest.raises(TpusimError, match=sentence):
        train_step(ts.simulate(MODEL, PLAN, POD), run)


def test_a_pipeline_takes_the_slowdown_that_is_given() -> None:
    plan = PLAN.replace(mesh={"stage": 2, "fsdp": 32}, microbatches=2, schedule="1f1b")
    step = ts.simulate(MODEL, plan, POD)
    chips: dict[str, Any] = {"time_share": 1.0, "compute": 0.5}
    with pytest.raises(TpusimError, match=r"or write stragglers\.chips\.slowdown"):
        train_step(step, TrainingRun(steps=10, stragglers={"chips": chips}))
    run = TrainingRun(steps=10, stragglers={"chips": {**chips, "slowdown": 1.5}})
    assert train_step(step, run).step_time_s == pytest.approx(1.5 * step.step_time_s)


def test_forms_of_small_cases() -> None:
    assert most_pauses(0.3, 5).sum() == pytest.approx(1)
    assert most_pauses(0.3, 5)[0] == pytest.approx((2.718281828459045**-0.3) ** 5)
    three = 3 / (2 * sqrt(3.141592653589793))
    assert [slowest_deviation(count) for count in (1, 3)] == pytest.approx([0, three], abs=1e-6)


FILE = """
[slice]
chip = "v4"
topology = "4x4x4"
[model]
layers = 2
embed = 256
mlp = 1024
heads = 2
vocab = 500
[plan]
mesh = { fsdp = 64 }
seq_len = 128
global_batch = 64
[train]
steps = 1000
"""
SECTION = """
[stragglers]
chips = { per_day = 0.5, duration_s = 3600, compute = 0.8 }
pauses = { per_hour = 2, seconds = 0.5, lead_s = 0 }
"""


def test_a_run_file_has_stragglers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.toml"
    path.write_text(FILE + SECTION)
    found = json.loads(said(["train", str(path), "--json"], capsys)[1])
    assert found["stragglers"]["factor"] > 1
    assert found["stragglers"]["factor_without"].keys() == {"chips", "pauses"}
    assert "without slow chips, which saves" in said(["train", str(path)], capsys)[1]
    path.write_text(FILE)
    assert "straggler" not in said(["train", str(path), "--json"], capsys)[1]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (FILE + "[stragglers]\nchip = 1\n", "[stragglers] has an unknown key 'chip'"),
        (FILE + "[stragglers]\nslices = { spread = 0.1 }\n", "is one slice"),
        (FILE.partition("[train]")[0] + SECTION, "[stragglers] is of a training run"),
    ],
)
def test_a_bad_section_is_a_sentence(
    text: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    code, _, error = said(["train", str(path)], capsys)
    assert code == 2
    assert sentence in error
