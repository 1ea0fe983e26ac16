"""The frame of a sweep: each row is what `simulate` says, and none is missing."""

import sys
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from extent import thorough
from many_plans import RESULT_NUMBERS, breakdown_labels, cell
from pandas import DataFrame, read_parquet
from pandas.testing import assert_frame_equal
from search_spaces import BASE, MODEL, POD, space

import tpusim as ts
from tpusim.base import FileError, PlanError, TpusimError
from tpusim.simulation import simulate
from tpusim.sweeps import Space, candidates, rows, sweep

RULES = [{}, {"act_embed": "tensor"}]
MODULE = sys.modules["tpusim.sweeps.sweep"]
"""The name in its package is the function."""


def swept(given: Space, **how: object) -> DataFrame:
    return sweep(MODEL, given, POD, **{"workers": 1, **how})


def test_the_front_door_has_both() -> None:
    assert (ts.sweep, ts.Space) == (sweep, Space)


def test_a_host_that_is_slow_has_columns_of_its_own(tmp_path: Path) -> None:
    """Whole seconds and parts of them are numbers of one column."""
    given = Space(base=BASE, vary={"input_s": [0, 0.25, 2]})
    table = swept(given, out=tmp_path / "sweep")
    assert table["input_s"].tolist() == [0.0, 0.25, 2.0]
    assert table["input_s"].dtype == float
    assert table["step_time_s"].tolist()[1:] == pytest.approx([0.25, 2.0], abs=2e-4)
    exposed = table["exposed dispatch"] + table["exposed input"]
    assert exposed.iloc[2] - exposed.iloc[1] == pytest.approx(1.75)


@pytest.mark.thorough
def test_hosts_feed_each_plan(tmp_path: Path) -> None:
    """Small batches wait for their hosts, whose stages are simulated beside each step."""
    slow = ts.Input(workers=1, decode_s=1e-3)
    given = space(vary={"global_batch": [32, 64]})
    table = swept(given, input=slow, out=tmp_path / "sweep")
    for row, tried in zip(table.to_dict("records"), candidates(given, POD), strict=True):
        result = simulate(MODEL, tried.plan, POD, input=slow)
        alone = simulate(MODEL, tried.plan, POD)
        assert row["step_time_s"] == result.step_time_s > alone.step_time_s
        assert row["exposed input"] == pytest.approx(result.input.exposed_s)  # type: ignore[union-attr]
    with pytest.raises(FileError, match="holds another sweep"):
        swept(given, out=tmp_path / "sweep")


def test_what_hosts_cannot_do_is_refused_with_its_reason() -> None:
    table = swept(space(vary={"input_s": [0.0, 0.1]}), input=ts.Input(workers=1))
    assert set(table.groupby("input_s")["status"].unique().map(tuple)) == {("ok",), ("refused",)}
    many = swept(space(), input=ts.Input(workers=100_000))
    assert all("100000 threads that decode" in reason for reason in many["reason"])
    with pytest.raises(PlanError, match=r"input is 3; write a ts\.Input"):
        swept(space(), input=3)
    with pytest.raises(PlanError, match=r"plan\.input_s is 1, and there is an input pipeline"):
        swept(Space(base=BASE.replace(input_s=1.0)), input=ts.Input(workers=1))


@pytest.mark.parametrize("rules", [RULES[1:], thorough(RULES)])
def test_each_row_is_the_result_of_its_plan(rules: list[object]) -> None:
    given = space(placements="all", vary={"rules": rules})
    table = swept(given)
    tried = list(candidates(given, POD))
    assert len(table) == len(tried)
    for row, candidate in zip(table.to_dict("records"), tried, strict=True):
        result = simulate(MODEL, candidate.plan, POD, placement=candidate.placement)
        assert {name: row[name] for name in RESULT_NUMBERS} == {
            name: getattr(result, name) for name in RESULT_NUMBERS
        }
        assert {axis: row[axis] for axis in candidate.plan.mesh} == candidate.plan.mesh
        assert row["rules"] == cell(candidate.plan.rules)
        assert row["placement"] == str(candidate.placement)
        assert {label: row[label] for label in breakdown_labels(("data", "fsdp", "tensor"))
                if row[label]} == pytest.approx(result.breakdown_s)  # fmt: skip


def test_the_best_placement_is_the_one_that_simulate_chooses() -> None:
    table = swept(Space(base=BASE, meshes=[{"fsdp": 8, "tensor": 2}]))
    plan = ts.Plan(mesh={"fsdp": 8, "tensor": 2}, seq_len=64, global_batch=32)
    assert table.loc[0, "placement"] == str(simulate(MODEL, plan, POD).placement)


def test_what_does_not_fit_keeps_its_numbers_and_says_why() -> None:
    table = swept(Space(base=BASE, vary={"global_batch": [32, 3_200_000]}))
    assert list(table["status"]) == ["ok", "does not fit"]
    assert list(table["fits"]) == [True, False]
    assert list(table["global_batch"]) == [32, 3_200_000]
    assert table.loc[0, "reason"] == ""
    assert table.loc[1, "reason"].startswith("needs ")
    assert table["step_time_s"].notna().all()


def test_what_is_refused_is_a_row_with_its_reason() -> None:
    wrong = [{"fsdp": 8}, {"fsdp": 16}, {"bogus": 16}]
    table = swept(Space(base=BASE, meshes=wrong, placements="all"))
    assert list(table["status"]) == ["refused", "ok", "refused"]
    assert "the mesh has fsdp=8 = 8, but there are 16 devices" in table.loc[0, "reason"]
    assert "plan.mesh.bogus shards nothing" in table.loc[2, "reason"]
    assert table.loc[[0, 2], ["step_time_s", "mfu", "matmul", "exposed_s"]].isna().all(axis=None)
    assert not table.loc[[0, 2], "fits"].any()
    assert list(table["bogus"]) == [1, 1, 16]
    assert (table["hbm_bytes"] == POD.chip.device.hbm_usable_bytes).all()


def test_values_that_contradict_each_other_are_rows_beside_those_that_do_not() -> None:
    base = replace(BASE, mesh={"stage": 2, "fsdp": 8}, microbatches=4)
    vary = {"schedule": ["1f1b", "interleaved"], "virtual_stages": [1, 2]}
    model = replace(MODEL, layers=4)
    table = sweep(model, Space(base=base, vary=vary), POD, workers=1)
    assert list(table["status"]) == ["ok", "refused", "refused", "ok"]
    assert table.loc[1, "reason"].startswith("plan.virtual_stages is 2, but the schedule 1f1b")


def test_layers_of_stages_are_tried_and_written_down() -> None:
    base = replace(BASE, mesh={"stage": 2, "fsdp": 8}, microbatches=4)
    table = swept(Space(base=base, vary={"stage_layers": [[1, 1], [2, 1]]}))
    assert list(table["stage_layers"]) == ["1, 1", "2, 1"]
    assert list(table["status"]) == ["ok", "refused"]


@pytest.mark.thorough
def test_a_sweep_of_refused_plans_has_the_same_columns() -> None:
    refused = swept(space(base=ts.Plan(mesh={"fsdp": 16}, seq_len=64, global_batch=7)))
    assert set(refused[refused["fsdp"] * refused["data"] > 1]["status"]) == {"refused"}
    known = swept(space())
    assert list(refused.columns) == list(known.columns)
    assert list(refused.dtypes) == list(known.dtypes)


@pytest.mark.parametrize(
    ("vary", "batches"), [({}, 2), thorough({"rules": RULES, "remat": ["full", "none"]}, 8)]
)
def test_neither_processes_nor_an_executor_change_the_frame(
    vary: dict[str, object], batches: int
) -> None:
    given = space(vary=vary)
    alone = swept(given)
    assert_frame_equal(swept(given, workers=2), alone)
    with ThreadPoolExecutor(3) as pool:
        assert_frame_equal(swept(given, executor=pool), alone)
    assert_frame_equal(swept(given, executor=Backwards(batches)), alone)


class Backwards(Executor):
    """Finishes what was submitted last first, once there are so many."""

    def __init__(self, batches: int) -> None:
        self.batches = batches
        self.waiting: list[tuple[Future, object, tuple]] = []

    def submit(self, function, /, *given):  # type: ignore[no-untyped-def]
        future: Future = Future()
        self.waiting.append((future, function, given))
        if len(self.waiting) == self.batches:
            for held, call, what in reversed(self.waiting):
                held.set_result(call(*what))
        return future


def test_progress_counts_every_plan() -> None:
    said: list[tuple[int, int]] = []
    table = swept(space(), progress=lambda done, whole: said.append((done, whole)))
    assert said[0] == (0, len(table))
    assert said[-1] == (len(table), len(table))
    assert said == sorted(said)


@pytest.mark.parametrize("workers", [0, -1, True, 1.5])
def test_workers_are_counted_from_one(workers: object) -> None:
    with pytest.raises(TpusimError, match="write a whole number from 1 up"):
        swept(space(), workers=workers)


def test_an_axis_is_not_named_like_a_column() -> None:
    with pytest.raises(PlanError, match="the mesh axis 'mfu' has the name of a column"):
        swept(Space(base=BASE, meshes=[{"fsdp": 4, "mfu": 4}]))


@pytest.mark.parametrize("rules", [RULES[1:], thorough(RULES)])
def test_the_dataset_reads_back_as_the_frame(
    rules: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MODULE, "PART_S", 0.0)
    wrong = [{"fsdp": 16, "data": 1, "tensor": 2}]
    meshes = wrong + [dict(candidate.plan.mesh) for candidate in candidates(space(), POD)]
    table = swept(space(axes=(), meshes=meshes, vary={"rules": rules}), out=tmp_path)
    assert len(list(tmp_path.glob("*.parquet"))) > 1
    assert set(table["status"]) == {"ok", "refused"}
    assert_frame_equal(read_parquet(tmp_path), table)


def test_a_sweep_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "PART_S", 0.0)
    first = swept(space(), out=tmp_path)
    lost = sorted(tmp_path.glob("*.parquet"))[0]
    lost.unlink()
    ran = []

    def spied(*given):  # type: ignore[no-untyped-def]
        ran.append(given)
        return simulate(*given[:3])

    monkeypatch.setattr(rows, "simulate", lambda *a, placement, input: spied(*a))
    again = swept(space(), out=tmp_path)
    assert_frame_equal(again, first)
    assert 0 < len(ran) == len(read_parquet(lost)) < len(first)
    assert_frame_equal(swept(space(), out=tmp_path), first)
    assert len(ran) == len(read_parquet(lost))


def test_two_sweeps_never_mix(tmp_path: Path) -> None:
    swept(space(), out=tmp_path / "one")
    with pytest.raises(FileError, match="holds another sweep"):
        swept(space(vary={"remat": ["none"]}), out=tmp_path / "one")
    with pytest.raises(FileError, match="holds other files; give a new or an empty folder"):
        swept(space(), out=tmp_path)
    damaged = sorted((tmp_path / "one").glob("*.parquet"))[0]
    with pytest.raises(FileError, match="is a file; give a folder"):
        swept(space(), out=damaged)
    damaged.write_bytes(b"no table")
    with pytest.raises(FileError, match="cannot be read; remove it"):
        swept(space(), out=tmp_path / "one")


def parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet"))


def test_an_identity_that_was_lost_is_written_again(tmp_path: Path) -> None:
    """After a loss of power a file may be empty, or full of zeros."""
    table = swept(space(), out=tmp_path)
    identity = tmp_path / "_sweep.json"
    content = identity.read_bytes()
    for lost in (b"", b"\0" * len(content)):
        identity.write_bytes(lost)
        assert_frame_equal(swept(space(), out=tmp_path), table)
        assert identity.read_bytes() == content


def test_a_part_of_another_sweep_or_place_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MODULE, "PART_S", 0.0)
    swept(space(), out=tmp_path / "one")
    swept(space(vary={"remat": ["none"]}), out=tmp_path / "two")
    first, second, *_ = parts(tmp_path / "one")
    whole = first.read_bytes()
    for other in (second, parts(tmp_path / "two")[0]):
        first.write_bytes(other.read_bytes())
        with pytest.raises(
            FileError, match=r"part-000000000-000000008\.parquet is not of this sweep; remove it"
        ):
            swept(space(), out=tmp_path / "one")
    first.write_bytes(whole)
    read_parquet(first).to_parquet(first, index=False)
    with pytest.raises(
        FileError, match=r"part-000000000-000000008\.parquet is not of this sweep; remove it"
    ):
        swept(space(), out=tmp_path / "one")


def test_a_part_that_was_changed_is_refused(tmp_path: Path) -> None:
    """Each page has a checksum, so a changed number is found, not only a broken file."""
    swept(space(), out=tmp_path)
    first = parts(tmp_path)[0]
    whole = first.read_bytes()
    first.write_bytes(whole[:60] + bytes([whole[60] ^ 1]) + whole[61:])
    with pytest.raises(FileError, match="cannot be read; remove it"):
        swept(space(), out=tmp_path)
    first.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FileError, match="cannot be read; remove it"):
        swept(space(), out=tmp_path)


@pytest.mark.parametrize(
    "name", ["part-000000015-000000099.parquet", "part-00001.parquet", "mine.parquet", "notes.txt"]
)
def test_a_file_that_is_none_of_the_parts_is_refused(name: str, tmp_path: Path) -> None:
    """Readers of the dataset would take its rows for some of the sweep's."""
    swept(space(), out=tmp_path)
    (tmp_path / name).write_bytes(parts(tmp_path)[0].read_bytes())
    with pytest.raises(FileError, match=f"holds {name}, which is not of this sweep"):
        swept(space(), out=tmp_path)


def test_two_runs_of_one_sweep_at_a_time_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their parts have other rows, and a reader of the folder would have some of them twice."""
    monkeypatch.setattr(MODULE, "PART_S", 0.0)

    def another(done: int, total: int) -> None:
        if done == 8:
            with monkeypatch.context() as small:
                small.setattr("tpusim.sweeps.chunks.LARGEST_CHUNK", 3)
                swept(space(), out=tmp_path)

    with pytest.raises(FileError, match=r"another run of the same sweep wrote to .*; remove it"):
        swept(space(), out=tmp_path, progress=another)
    with pytest.raises(FileError, match=r"-000000015\.parquet is not of this sweep; remove it"):
        swept(space(), out=tmp_path)


SHAPES = Space(
    base=ts.Plan(mesh={"fsdp": 16, "tensor": 16}, seq_len=64, global_batch=256),
    shapes="all+twisted",
)


@pytest.mark.thorough
def test_a_row_of_another_shape_is_the_result_on_it(tmp_path: Path) -> None:
    pod = ts.Slice("v4", "8x8x4")
    table = sweep(MODEL, SHAPES, pod, workers=1, out=tmp_path)
    assert list(table["topology"]) == ["4x4x16", "4x8x8", "4x8x8_twisted"]
    for row in table.to_dict("records"):
        result = simulate(MODEL, SHAPES.base, ts.Slice("v4", row["topology"]))
        assert row["step_time_s"] == result.step_time_s
        assert row["placement"] == str(result.placement)
    assert_frame_equal(sweep(MODEL, SHAPES, pod, workers=1, out=tmp_path), table)
    with pytest.raises(FileError, match="holds another sweep"):
        sweep(MODEL, replace(SHAPES, shapes="all"), pod, workers=1, out=tmp_path)
    base = replace(SHAPES.base, mesh={"fsdp": 16, "topology": 16})
    named = replace(SHAPES, base=base)
    with pytest.raises(PlanError, match="the mesh axis 'topology' has the name of a column"):
        sweep(MODEL, named, pod, workers=1)


def test_the_shape_is_a_column_where_it_varies_only() -> None:
    assert "topology" not in swept(Space(base=BASE))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("full", "full"), (8, 8), ((), "none"), ({}, "none"), (["q", "k"], "q, k"),
        ({"mlp": None, "vocab": ["fsdp", "tensor"]}, "mlp=none, vocab=fsdp+tensor"),
        ({"loss": ["fsdp", [], None]}, "loss=fsdp+none+none"),
    ],
)  # fmt: skip
def test_a_field_is_one_cell(value: object, text: object) -> None:
    assert cell(value) == text
