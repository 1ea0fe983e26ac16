"""Sweeps over schedules: bubbles are a column, contradictions are refused plans."""

from functools import cache

import pytest
from many_plans import PLAN_FITS, PLAN_REFUSED, sweep_text
from pandas import DataFrame
from search_spaces import POD

import tpusim as ts
from tpusim.base import PlanError
from tpusim.results import COMPUTE_LABELS, EXPOSED
from tpusim.sweeps import Space, sweep

BASE = ts.Plan(mesh={"stage": 2, "fsdp": 8}, seq_len=64, global_batch=64)
MODEL = ts.models.Transformer(layers=4, embed=256, mlp=1024, heads=4, vocab=1000)
VARY = {
    "schedule": ["gpipe", "1f1b", "interleaved", "zb-h1", "circular"],
    "microbatches": [1, 4],
    "virtual_stages": [1, 2],
}


@cache
def varied() -> DataFrame:
    return sweep(MODEL, Space(base=BASE, vary=VARY), POD, workers=1)


def test_every_combination_is_a_row_and_contradictions_are_refused() -> None:
    table = varied()
    assert len(table) == 5 * 2 * 2
    chunked = table["schedule"].isin(["interleaved", "circular"])
    refused = table["status"] == PLAN_REFUSED
    assert refused[(table["virtual_stages"] == 2) & ~chunked].all()
    assert refused[(table["virtual_stages"] == 1) & (table["schedule"] == "interleaved")].all()
    assert table.loc[refused, "reason"].str.len().min() > 20
    ran = table[table["status"] == PLAN_FITS]
    assert set(ran["schedule"]) == set(VARY["schedule"])


def test_a_breakdown_with_bubbles_sums_to_the_step() -> None:
    table = varied()
    ran = table[table["status"] == PLAN_FITS]
    labels = [c for c in ran if c in (*COMPUTE_LABELS, "bubble") or c.startswith(EXPOSED)]
    assert ran[labels].sum(axis=1).tolist() == pytest.approx(ran["step_time_s"].tolist())
    for _, row in ran.iterrows():
        plan = ts.Plan(
            mesh=BASE.mesh, seq_len=64, global_batch=64,
            **{key: row[key] for key in ("schedule",)},
            **{key: int(row[key]) for key in ("microbatches", "virtual_stages")},
        )  # fmt: skip
        one = ts.simulate(MODEL, plan, POD)
        assert row["step_time_s"] == one.step_time_s
        assert row["bubble"] == one.breakdown_s.get("bubble", 0.0)


def test_bubbles_are_printed_where_there_are_any() -> None:
    piped = sweep_text(
        sweep(MODEL, Space(base=BASE, vary={"microbatches": [2, 4]}), POD, workers=1), "x"
    )
    assert "bubble" in piped
    flat = ts.Plan(mesh={"fsdp": 16}, seq_len=64, global_batch=64)
    assert "bubble" not in sweep_text(sweep(MODEL, Space(base=flat), POD, workers=1), "x")


def test_a_mesh_of_one_stage_is_a_row_without_a_pipeline() -> None:
    space = Space(base=BASE, axes=("stage", "fsdp"), vary={"microbatches": [4]})
    table = sweep(MODEL, space, POD, workers=1)
    alone = table[table["stage"] == 1].iloc[0]
    assert alone["status"] == PLAN_FITS
    assert alone["bubble"] == 0
    assert (table.loc[(table["status"] == PLAN_FITS) & (table["stage"] > 1), "bubble"] > 0).all()


def test_a_word_that_no_plan_can_have_is_refused_at_once() -> None:
    with pytest.raises(PlanError, match=r"sweep.vary.schedule\[0\]"):
        Space(base=BASE, vary={"schedule": ["tidy"]})


@pytest.mark.parametrize("vary", [{"schedule": ["interleaved"]}, {"virtual_stages": [2]}])
def test_a_value_that_contradicts_all_plans_makes_refused_rows(
    vary: dict[str, list[object]],
) -> None:
    table = sweep(MODEL, Space(base=BASE, vary=vary), POD, workers=1)
    assert len(table)
    assert set(table["status"]) == {PLAN_REFUSED}
    assert table["reason"].str.contains("virtual_stages").all()
