"""A pipeline as a chart in real times, and a table of its stages."""

from dataclasses import replace
from functools import cache

import pytest

import tpusim as ts
from tpusim.base import format_bytes, format_seconds
from tpusim.program import CHART_COLUMNS, CHART_MARGIN, PassKind, chart_rows
from tpusim.results import Result

MODEL = ts.models.Transformer(name="m", layers=16, embed=2048, mlp=8192, heads=16, vocab=32000)
PLAN = ts.Plan(
    mesh={"stage": 4, "fsdp": 4, "tensor": 4}, seq_len=2048, global_batch=64, microbatches=8
)  # fmt: skip


@cache
def result(schedule: str = "1f1b", chunks: int = 1) -> Result:
    plan = PLAN.replace(schedule=schedule, virtual_stages=chunks)
    return ts.simulate(MODEL, plan, ts.Slice("v5p", "4x4x4"))


@pytest.mark.parametrize(
    ("schedule", "chunks"), [("1f1b", 1), ("zb-h1", 1), ("interleaved", 2), ("circular", 2)]
)
def test_the_chart_and_the_table_have_a_line_a_stage(schedule: str, chunks: int) -> None:
    table = ts.explain_pipeline(result(schedule, chunks))
    lines = str(table).splitlines()
    assert lines[0].startswith(f"pipeline    {schedule}, 4 stages")
    assert all(len(line) <= CHART_COLUMNS for line in lines)
    chart, rows = lines[1:5], lines[-4:]
    for stage, (drawn, row, use) in enumerate(zip(chart, rows, table.stages, strict=True)):
        assert drawn.startswith(f"  {stage}  ")
        assert row.split()[0] == str(stage)
        assert row.split()[1] == "+".join([str(4 // chunks)] * chunks)
        assert f"{use.bubble_ps / table.step_ps:.1%}" in row
        assert format_bytes(use.hbm_peak_bytes) in row
        marks = drawn[CHART_MARGIN:].count("." if schedule != "circular" else "x")
        assert marks / (CHART_COLUMNS - CHART_MARGIN) <= use.bubble_ps / table.step_ps + 0.12


def test_ends_of_the_model_are_where_they_belong() -> None:
    first, *middle, last = ts.explain_pipeline(result()).stages
    assert first.besides == "embedding"
    assert last.besides == "final norm, head, loss"
    assert {use.besides for use in middle} == {""}


def test_a_plan_without_a_pipeline_says_so() -> None:
    plan = replace(PLAN, mesh={"fsdp": 64}, microbatches=1)
    one = ts.simulate(MODEL, plan, ts.Slice("v5p", "4x4x4"))
    assert str(ts.explain_pipeline(one)).startswith("pipeline    none")


def test_a_slot_of_each_kind_has_its_mean_time() -> None:
    table = ts.explain_pipeline(result("zb-h1"))
    row = str(table).splitlines()[-4]
    means = [table.stages[0].mean_ps(kind) * 1e-12 for kind in PassKind]
    assert all(format_seconds(mean) in row for mean in means)
    ran = [each for each in table.stages[0].slots if each.slot.kind is PassKind.FORWARD]
    assert means[0] == pytest.approx(sum(e.end_ps - e.start_ps for e in ran) / len(ran) * 1e-12)


def test_labels_stand_where_most_of_them_have_room() -> None:
    wide = chart_rows(
        [[("F0", 0, 5), ("B0", 5, 10)], [("F0", 5, 9), (">", 9, 10)]], 10, CHART_MARGIN + 10
    )
    assert wide == ["  0  F0---B0---", "  1  .....F0-->"]


def test_narrow_slots_are_letters_and_those_of_no_column_are_left_out() -> None:
    slots = [(f"F{at}", at, at + 1) for at in range(10)]
    (row,) = chart_rows([slots], 10, CHART_MARGIN + 10)
    assert row == "  0  FFFFFFFFFF"
    (row,) = chart_rows([[*slots, ("B10", 10, 20)]], 20, CHART_MARGIN + 10)
    assert row[CHART_MARGIN:].count("B") == 1
    assert len(row) == CHART_MARGIN + 10
