"""What decides about a placement, and what a step's collectives cost, as tables."""

from dataclasses import replace

import pytest
from hlo import DATA
from replays import ORIGIN, PROGRAM, gather, placed, small_replay
from replays import POD as REPLAYED
from steps import replay_program

import tpusim as ts
from tpusim.base import Phase
from tpusim.hardware import placement_from
from tpusim.simulation.explain import ROWS_SHOWN

MODEL = ts.models.Transformer(layers=3, embed=1024, mlp=4096, heads=8, vocab=1000)
MESH = {"data": 2, "fsdp": 8, "context": 2, "tensor": 8}
PLAN = ts.Plan(mesh=MESH, seq_len=512, global_batch=256)
POD = ts.Slice("v6e", "16x16")


def test_the_fastest_is_first_and_marked_and_the_rest_is_measured_by_it() -> None:
    table = ts.explain_placement(MODEL, PLAN, POD)
    first, *others = table.rows
    assert first.placement == ts.simulate(MODEL, PLAN, POD).placement
    assert first.taken
    lines = str(table).splitlines()
    assert lines[0].startswith(f"placements  {len(table.rows)} candidates; ")
    assert lines[2].split()[2] == "-"
    last = max(row.step_time_s or row.least_s for row in others)
    assert f"{last / first.step_time_s - 1:.2%}" in str(table)


def test_a_given_placement_that_is_no_candidate_is_a_row_of_its_own() -> None:
    mesh = {"fsdp": 16, "tensor": 16}
    plan = ts.Plan(mesh=mesh, seq_len=512, global_batch=256)
    given = placement_from(POD, mesh, {"fsdp": ["y"], "tensor": ["x"]})
    table = ts.explain_placement(MODEL, plan, POD, placement=given)
    (row,) = [row for row in table.rows if row.taken]
    assert (row.placement, table.given) == (given, True)
    assert row.step_time_s == ts.simulate(MODEL, plan, POD, placement=given).step_time_s


def test_twenty_rows_are_shown_and_the_taken_one_among_them() -> None:
    table = ts.explain_placement(MODEL, PLAN, POD)
    slowest = table.rows[-1]
    many = type(table)((*(row for row in table.rows[:-1] for _ in range(9)), slowest), False)
    lines = [line for line in str(many).splitlines() if " on " in line]
    assert str(many).endswith(f"\n  and {len(many.rows) - ROWS_SHOWN} more")
    assert sum(line[:19].strip() != "" for line in lines) == ROWS_SHOWN


def test_the_collectives_of_a_synchronous_step_are_what_is_exposed() -> None:
    plan = ts.Plan(mesh={"fsdp": 256}, seq_len=512, global_batch=256)
    result = ts.simulate(MODEL, plan, ts.Slice("v4", "4x8x8"))
    rows = ts.explain_collectives(result).rows
    assert {row.mode for row in rows} == {"sync"}
    assert sum(row.times * row.seconds for row in rows) == pytest.approx(result.exposed_s)
    assert len({replace(row, times=0) for row in rows}) == len(rows)
    totals = [row.times * row.seconds for row in rows]
    assert totals == sorted(totals, reverse=True)


def test_a_collective_across_slices_says_so() -> None:
    plan = ts.Plan(mesh={"fsdp": 16, "dcn_data": 2}, seq_len=512, global_batch=256)
    rows = ts.explain_collectives(ts.simulate(MODEL, plan, ts.Slice("v5e", "4x4", 2))).rows
    for row in rows:
        assert row.how.endswith("2 slices") == ("dcn_data" in row.axes)
        assert row.how


def test_a_step_on_one_device_has_neither() -> None:
    plan, pod = ts.Plan(mesh={"data": 1}, seq_len=64, global_batch=4), ts.Slice("v5e", "1x1")
    assert "1 candidate\n" in str(ts.explain_placement(MODEL, plan, pod))
    said = str(ts.explain_collectives(ts.simulate(MODEL, plan, pod)))
    assert said == "collectives 0 that differ, 0 a step; alone, one after the other, 0 s"


def test_the_collectives_of_a_compiled_program_have_their_code_and_their_tensor() -> None:
    pytest.importorskip("jaxlib", reason="reading HLO needs the extra `xla`")
    table = ts.explain_collectives(ts.simulate(ts.xla.load(DATA / "moe_v6e_4x4.hlo.gz")))
    first = next(row for row in table.rows if row.source == "moe.py:53")
    assert (first.kind, first.axes, first.tensor) == ("all-gather", ("fsdp",), "bf16[32,512,1024]")
    assert (first.scope, first.times) == ("ebcd,bsec->bsd/dot_general", 2)
    assert all(row.tensor and row.source for row in table.rows)
    assert len(table.rows) == 19
    assert sum(row.times for row in table.rows) == 50
    assert "moe.py:53 bf16[32,512,1024]; one line of 4" in " ".join(str(table).split())
    several = next(row for row in table.rows if row.axes == ("fsdp", "expert"))
    assert several.tensor == "bf16[1,1024,8] and 1 more"


def test_without_lines_they_have_their_scopes() -> None:
    table = ts.explain_collectives(small_replay())
    assert {row.source for row in table.rows} == {"model.py:12", "model.py:13"}
    bare = replace(
        PROGRAM, body=(replace(gather("all-gather.9", Phase.FORWARD, ""), tensor="f32[8]"),)
    )
    table = ts.explain_collectives(replay_program(bare, REPLAYED, placed(), origin=ORIGIN))
    assert "mlp/all_gather f32[8]; " in str(table)
