"""The defaults that decide are in the summary, and what MaxText's program would take."""

from typing import Any

import pytest
from commands import run
from plans import plan_of, small

import tpusim as ts
from tpusim.report import as_maxtext, document
from tpusim.results import PlanResult
from tpusim.results.summary import summary

PLAIN = "a program of plain JAX"


def simulated(**plan: Any) -> PlanResult:
    return ts.simulate(small(layers=4), plan_of(**({"mesh": {"fsdp": 8}} | plan)), "v5e:2x4")


def defaults_of(result: PlanResult) -> list[str]:
    return [text for _, text in result.defaults()]


def test_a_plan_of_defaults_says_them_all() -> None:
    assert defaults_of(simulated()) == [
        PLAIN, "f32 weights and moments", "bf16 gradients and reductions",
        "attention in blocks of 512 x 512", "two kernels for its gradients",
        "an asynchronous loop whose input is ready",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("plan", "gone"),
    [
        ({"style": "maxtext"}, PLAIN),
        ({"lowering": "ideal"}, PLAIN),
        ({"attention_block": [1024, 512]}, "attention in blocks of 512 x 512"),
        ({"attention_backward": "one-kernel"}, "two kernels for its gradients"),
        ({"loop": "synchronous"}, "an asynchronous loop whose input is ready"),
        ({"param_dtype": "bf16", "moment_dtype": "bf16"}, "f32 weights and moments"),
    ],
)
def test_what_is_given_is_no_default(plan: dict[str, Any], gone: str) -> None:
    assert gone in defaults_of(simulated())
    assert gone not in defaults_of(simulated(**plan))


def test_nothing_is_said_of_what_a_model_does_not_have() -> None:
    plan = ts.Plan(mesh={"data": 8}, global_batch=64, optimizer="sgd")
    result = ts.simulate("resnet-50", plan, "v5e:2x4")
    assert defaults_of(result) == [
        PLAIN, "f32 weights", "bf16 gradients and reductions",
        "an asynchronous loop whose input is ready",
    ]  # fmt: skip
    assert as_maxtext(result) is None


def test_a_large_model_says_what_maxtext_gives() -> None:
    """Llama 3.1 70B on a pod of v6e: plain JAX and MaxText compile to different programs."""
    plan = ts.Plan(mesh={"fsdp": 256}, seq_len=8192, global_batch=256)
    result = ts.simulate("llama3.1-70b", plan, "v6e-256")
    other = as_maxtext(result)
    assert other is not None
    assert other.plan == plan.replace(style="maxtext")
    assert abs(1 - other.step_time_s / result.step_time_s) > 0.02
    text = " ".join(summary(result, None, other).split())
    assert f"{PLAIN} (MaxText's compiles otherwise: style = 'maxtext' gives" in text
    facts = document(result, None, other)
    assert facts["maxtext_step_time_s"] == other.step_time_s
    assert "style" in facts["defaults"]


def test_the_command_simulates_both(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.toml"
    ts.write_run(path, small(layers=4), plan_of(mesh={"fsdp": 8}), "v5e:2x4")
    assert run(["simulate", str(path)]) == 0
    assert "style = 'maxtext' gives" in " ".join(capsys.readouterr().out.split())
    assert run(["simulate", str(path), "--set", "plan.style=maxtext"]) == 0
    assert PLAIN not in capsys.readouterr().out
