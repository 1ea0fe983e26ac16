"""Losses of a step that follow from its sharding are told beside its time, with what to write."""

import re
from typing import Any

import pytest
from plans import plan_of, small

import tpusim as ts
from tpusim.models import Architecture
from tpusim.report import document
from tpusim.results import LEAST_SHOWN, PlanResult
from tpusim.runfile.read_run import changed_plan

MODEL = small(layers=4, embed=1024, mlp=4096, heads=16, head_dim=64, vocab=32000)
NO_MLP: dict[str, Any] = {"rules": {"mlp": None, "act_mlp": None}}


def simulated(model: Architecture = MODEL, **plan: Any) -> PlanResult:
    given = {"mesh": {"fsdp": 8, "tensor": 4}, "seq_len": 2048}
    return ts.simulate(model, plan_of(**(given | plan)), "v5e:4x8")


def under_the_time(result: PlanResult) -> str:
    """The block of the summary with the step time, in one line."""
    (block,) = (part for part in str(result).split("\n\n") if part.startswith("step time"))
    return " ".join(block.split())


def test_a_dimension_without_a_rule_is_named_with_the_rule_to_write() -> None:
    result = simulated(**NO_MLP)
    (warning,) = result.warnings()
    assert warning.kind == "repeated work"
    assert warning.share == pytest.approx(float(result.flops.redundant / result.flops.total))
    assert warning.share > 0.5
    assert warning.settings == ('plan.rules={ mlp = "tensor", act_mlp = "tensor" }',)
    text = under_the_time(result)
    assert "warning 59% of all FLOPs are repeated: no rule divides mlp over tensor" in text
    assert 'layer/wi_0; write [plan.rules] mlp = "tensor", act_mlp = "tensor": the step' in text
    assert "redundant" not in str(result)


@pytest.mark.thorough
def test_what_a_warning_says_to_write_helps() -> None:
    result = simulated(**NO_MLP)
    plan = changed_plan(result.plan, result.warnings()[0].settings)
    other = ts.simulate(result.model, plan, result.pod)
    assert other.step_time_s < 0.6 * result.step_time_s
    assert (other.flops.redundant, other.warnings()) == (0, ())
    tried = result.advice(quick=True).changes[0]
    assert tried.settings == result.warnings()[0].settings
    assert tried.step_time_s == other.step_time_s


def test_a_batch_that_no_axis_divides_gets_its_rule() -> None:
    (warning,) = simulated(mesh={"fsdp": 32}, rules={"act_batch": None}).warnings()
    assert warning.keys == {"rules": {"act_batch": "fsdp"}}


def test_heads_that_do_not_divide_are_padding() -> None:
    result = simulated(MODEL.replace(heads=12, kv_heads=12), mesh={"fsdp": 4, "tensor": 8})
    (warning,) = result.warnings()
    assert warning.kind == "padding"
    assert warning.share == pytest.approx(float(result.flops.padding / result.flops.total), rel=0.1)
    assert "padding: heads is 12, and is computed as 16 over tensor=8; write" in warning.text
    assert warning.text.endswith("write [model] heads = 16 or a mesh with tensor = 4")
    assert "FLOPs are padding" not in str(result).partition("HBM peak")[2]


def test_a_tensor_between_two_layouts_is_named_with_both() -> None:
    result = simulated(rules={"act_mlp": None, "heads": None})
    found = [each for each in result.warnings() if each.kind == "resharding"]
    assert found
    assert sum(each.share for each in found) < result.exposed_s / result.step_time_s
    for warning in found:
        assert warning.share > 0.02
        assert "over tensor of " in warning.text
        assert "which no rule asks for: it is made as P(" in warning.text


def test_a_usual_plan_has_no_warning_and_a_small_loss_is_a_note() -> None:
    result = simulated(small(kv_heads=1, heads=8, embed=1024, mlp=8192))
    assert 0 < result.flops.redundant < 0.05 * result.flops.total
    assert result.warnings() == ()
    assert re.search(r"extra work  \d\.\d% of all FLOPs are redundant", str(result))


def test_extra_work_that_would_print_as_nothing_is_left_out() -> None:
    result = simulated(small(layers=4, embed=1024, mlp=4096, heads=16, vocab=32001))
    assert 0 < result.flops.padding < LEAST_SHOWN * result.flops.total
    assert "extra work" not in str(result)


def test_scores_that_a_mask_hides_and_trips_of_a_pipeline_are_no_warning() -> None:
    masked = simulated(MODEL.replace(attention="dot"), seq_len=16384, mesh={"fsdp": 32})
    assert masked.flops.redundant > 0.05 * masked.flops.total
    assert masked.warnings() == ()
    idle = simulated(MODEL.replace(layers=4), mesh={"stage": 4, "fsdp": 8}, schedule="circular",
                     microbatches=4)  # fmt: skip
    assert idle.flops.redundant > 0.05 * idle.flops.total
    assert idle.warnings() == ()


def test_warnings_are_in_the_document_and_the_headline() -> None:
    result = simulated(**NO_MLP)
    (fact,) = document(result)["warnings"]
    assert (fact["kind"], fact["text"]) == ("repeated work", result.warnings()[0].text)
    assert fact["settings"] == list(result.warnings()[0].settings)
    assert "warning: 59% of all FLOPs are repeated" in repr(result)


def test_a_part_of_a_model_is_told_by_its_rules() -> None:
    model = ts.models.load("siglip-b/16")
    rules: dict[str, Any] = {f"image.{key}": [] for key in ("heads", "act_heads", "mlp", "act_mlp")}
    plan = ts.Plan(mesh={"fsdp": 8, "tensor": 2}, global_batch=8192, rules=rules)
    result = ts.simulate(model, plan, "v4:2x2x4")
    (warning, *_) = result.warnings()
    other = ts.simulate(model, changed_plan(plan, warning.settings), "v4:2x2x4")
    assert other.step_time_s < result.step_time_s


def test_rules_that_would_be_slower_are_not_advised() -> None:
    """Three layers of 64, whose parts are too small for their collectives."""
    dims = ("mlp", "heads", "kv_heads")
    rules = dict.fromkeys((*dims, *(f"act_{dim}" for dim in dims)))
    result = simulated(small(layers=4), seq_len=16, rules=rules)
    assert result.warnings()
    for warning in result.warnings():
        assert bool(warning.keys) == ("the step then takes" in warning.text)
        assert bool(warning.keys) != ("but the step takes" in warning.text)
