"""The range of a result: where it comes from, and how it is printed and written."""

import pytest
from many_plans import RANGE_COLUMNS
from plans import ENCODER_480B, PLAN_480B, v4_2048
from replays import small_replay

import tpusim as ts
from tpusim.accuracy import measured_errors
from tpusim.base import format_seconds
from tpusim.report import document

MODEL = ts.models.Transformer(layers=2, embed=256, mlp=1024, heads=4, vocab=1000)
MESH = {"fsdp": 16}


def small(**given: object) -> ts.PlanResult:
    plan = ts.Plan(**({"mesh": MESH, "seq_len": 64, "global_batch": 16} | given))
    return ts.simulate(MODEL, plan, ts.Slice("v5e", "4x4"))


def line(result: ts.Result) -> str:
    """The line of the summary that has the range, with those that it is wrapped into."""
    return " ".join(str(result).split())


def test_the_range_is_made_of_the_features_of_the_result() -> None:
    result = ts.simulate(ENCODER_480B, PLAN_480B, v4_2048())
    features = result.features
    assert (features.chip, features.style, features.step_s) == ("v4", "plain", result.step_time_s)
    assert (features.experts, features.quantised, features.pipelined) == (False, False, False)
    assert features.params == ENCODER_480B.parameter_count
    assert features.exposed == pytest.approx(result.exposed_s / result.step_time_s)
    assert result.error_range == measured_errors().range(features)
    assert features.vector + features.exposed < 1


def test_kinds_of_plans_are_told_apart() -> None:
    assert small(matmul_dtype="int8").features.quantised
    assert small(style="maxtext").features.style == "maxtext"
    pipelined = small(mesh={"stage": 2, "fsdp": 8}, microbatches=2, schedule="gpipe")
    assert pipelined.features.pipelined
    experts = ts.models.Transformer(
        layers=2, embed=256, mlp=1024, heads=4, vocab=1000, experts=4, experts_per_token=2
    )
    plan = ts.Plan(mesh=MESH, seq_len=64, global_batch=16)
    assert ts.simulate(experts, plan, ts.Slice("v5e", "4x4")).features.experts


def test_both_ranges_say_the_same() -> None:
    result = ts.simulate(ENCODER_480B, PLAN_480B, v4_2048())
    (low, high), (least, most) = result.step_time_range_s, result.mfu_range
    assert 0 < low < high
    assert least * high == pytest.approx(result.mfu * result.step_time_s)
    assert most * low == pytest.approx(result.mfu * result.step_time_s)
    assert (low, high) == result.error_range.of(result.step_time_s)


def test_the_summary_and_the_json_have_them() -> None:
    result = ts.simulate(ENCODER_480B, PLAN_480B, v4_2048())
    (low, high), (least, most) = result.step_time_range_s, result.mfu_range
    ends = f"{format_seconds(low)} to {format_seconds(high)}"
    text = f"{ends}, {result.throughput_range} in 8 of 10 runs like this"
    assert text in line(result)
    assert f"MFU {result.mfu:.1%} ({least:.1%} to {most:.1%})" in line(result)
    found = document(result)
    assert found["step_time_range_s"] == [low, high]
    assert found["mfu_range"] == [least, most]
    assert found["like_measured"] is True


def test_a_range_of_what_is_like_nothing_measured_is_not_said_to_hold_8_of_10() -> None:
    """What measured runs say and that none is like it are two sentences, in each that prints it."""
    pipelined = small(mesh={"stage": 2, "fsdp": 8}, microbatches=2, schedule="gpipe")
    low, high = map(format_seconds, pipelined.step_time_range_s)
    for text in (line(pipelined), " ".join(repr(pipelined).split())):
        assert f"nothing like it was measured: {low} to {high}" in text
        assert "by the errors of other runs" in text
        assert "8 of 10" not in text
    flagship = ts.simulate(ENCODER_480B, PLAN_480B, v4_2048())
    for text in (line(flagship), " ".join(repr(flagship).split())):
        assert "in 8 of 10 runs like this" in text
        assert "nothing like it" not in text


def test_what_is_not_like_any_measured_run_has_none() -> None:
    for result in (small(lowering="ideal"), small_replay()):
        assert (result.error_range, result.step_time_range_s, result.mfu_range) == (None,) * 3
        assert "8 of 10 runs" not in line(result)
        found = document(result)
        assert [found[k] for k in ("step_time_range_s", "mfu_range", "like_measured")] == [None] * 3


def test_a_sweep_has_their_ends_as_columns() -> None:
    base = ts.Plan(mesh={"fsdp": 16}, seq_len=64, global_batch=16)
    space = ts.Space(base=base, axes=("fsdp", "tensor"))
    frame = ts.sweep(MODEL, space, ts.Slice("v5e", "4x4"), workers=1)
    fitting = frame[frame["fits"]]
    assert set(RANGE_COLUMNS) <= set(frame.columns)
    assert (fitting["step_time_low_s"] < fitting["step_time_high_s"]).all()
    product = fitting["mfu_low"] * fitting["step_time_high_s"]
    assert product.to_list() == pytest.approx((fitting["mfu"] * fitting["step_time_s"]).to_list())
    assert frame[~frame["fits"] & frame["mfu"].isna()]["step_time_low_s"].isna().all()
