"""The report: every table and figure sums to the step time, and JSON keeps its promises."""

import csv
import json
from dataclasses import replace
from decimal import Decimal
from functools import cache
from io import StringIO
from itertools import pairwise
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from reports import PHASE_SHADES, decimal_seconds, operations_csv, transfers_csv

import tpusim as ts
from tpusim.base import FileError, Phase
from tpusim.report import (
    breakdown_data,
    check_folder,
    document,
    perfect_compiler,
    plot_breakdown,
    trace,
    write_report,
)
from tpusim.results import Result

MODEL = ts.models.Transformer(layers=3, embed=1024, mlp=4096, heads=8, kv_heads=2, vocab=1003)
MESH = {"fsdp": 8, "tensor": 4}


@cache
def result(lowering: str = "xla", batch: int = 64, fold: bool = True) -> Result:
    plan = ts.Plan(mesh=MESH, seq_len=256, global_batch=batch, lowering=lowering)
    return ts.simulate(MODEL, plan, ts.Slice("v5e", "4x8"), fold=fold)


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(text)))


@pytest.mark.parametrize("lowering", ["xla", "ideal"])
@pytest.mark.parametrize("fold", [True, False])
def test_operations_sum_to_the_step_to_the_picosecond(lowering: str, fold: bool) -> None:
    run = result(lowering, fold=fold)
    table = rows(operations_csv(run))
    assert sum(Decimal(row["total_s"]) for row in table) == Decimal(
        decimal_seconds(run.timeline.total_ps)
    )
    for row in table:
        assert int(row["count"]) * Decimal(row["duration_s"]) == Decimal(row["total_s"])
    starts = [Decimal(row["start_s"]) for row in table]
    assert starts == sorted(starts)


@pytest.mark.parametrize("lowering", ["xla", "ideal"])
def test_folded_and_unfolded_tables_hold_the_same_work(lowering: str) -> None:
    def totals(fold: bool, table: str) -> dict[str, tuple[int, Decimal]]:
        found: dict[str, tuple[int, Decimal]] = {}
        for row in rows(globals()[table](result(lowering, fold=fold))):
            count, total = found.get(row["name"], (0, Decimal()))
            found[row["name"]] = count + int(row["count"]), total + Decimal(row["total_s"])
        return found

    assert totals(True, "operations_csv") == totals(False, "operations_csv")
    assert totals(True, "transfers_csv") == totals(False, "transfers_csv")


def test_transfers_hold_every_collective_as_often_as_it_runs() -> None:
    from plans import flat

    from tpusim.program import Collective

    run = result()
    moving = {op.name: (op, n) for op, n in flat(run.program.body) if isinstance(op, Collective)}
    counts: dict[str, int] = {}
    batch, *others = rows(transfers_csv(run))
    assert (batch["name"], batch["kind"], batch["count"]) == ("input", "input", "1")
    for row in others:
        counts[row["name"]] = counts.get(row["name"], 0) + int(row["count"])
        op, _ = moving[row["name"]]
        assert float(row["bytes"]) == op.bytes
        assert (row["kind"], row["axes"].split("+"), row["mode"]) == (
            op.kind,
            list(op.axes),
            op.mode,
        )
    assert counts == {name: n for name, (_, n) in moving.items()}


def test_a_collective_has_a_row_for_each_of_its_parts() -> None:
    plan = ts.Plan(mesh={"data": 64}, seq_len=256, global_batch=64)
    run = ts.simulate(MODEL, plan, ts.Slice("v4", "4x4x4"))
    parts = [row for row in rows(transfers_csv(run)) if row["name"].endswith("/data/0")]
    names = {row["name"] for row in rows(transfers_csv(run))}
    assert parts
    for row in parts:
        assert row["name"].removesuffix("/data/0") in names
        assert (row["kind"], row["axes"]) == ("all-reduce", "data")
    moved = {event["name"]: event["args"] for event in trace(run)["traceEvents"]
             if event["name"] in names and event["ph"] == "X"}  # fmt: skip
    assert all(moved[row["name"]]["bytes"] == float(row["bytes"]) for row in parts)


@pytest.mark.parametrize(
    ("picoseconds", "written"),
    [(0, "0.000000000000"), (1, "0.000000000001"), (21_570_000_000_001, "21.570000000001")],
)
def test_picoseconds_are_written_exactly(picoseconds: int, written: str) -> None:
    assert decimal_seconds(picoseconds) == written


def test_the_bars_sum_to_the_step_and_are_ranked() -> None:
    run = result()
    bars = breakdown_data(run)
    assert sum(bar.total for bar in bars) == pytest.approx(run.step_time_s, rel=1e-12)
    assert {bar.label: pytest.approx(bar.total) for bar in bars} == run.breakdown_s
    exposed = [bar.label.startswith("exposed") for bar in bars]
    assert exposed == sorted(exposed)
    assert 0 < sum(exposed) < len(bars)
    for kind in (True, False):
        totals = [bar.total for bar, is_exposed in zip(bars, exposed, strict=True)
                  if is_exposed is kind]  # fmt: skip
        assert totals == sorted(totals, reverse=True)


def test_phases_sum_to_the_step() -> None:
    run = result()
    assert list(run.phases_s) == [str(phase) for phase in Phase]
    assert sum(run.phases_s.values()) == pytest.approx(run.step_time_s, rel=1e-12)
    for phase in Phase:
        drawn = sum(bar.seconds.get(phase, 0) for bar in breakdown_data(run))
        assert drawn == pytest.approx(run.phases_s[phase])


def test_the_figure_shows_the_bars() -> None:
    run = result()
    bars = breakdown_data(run)
    ax = plot_breakdown(run)
    assert isinstance(ax, Axes)
    assert [label.get_text() for label in ax.get_yticklabels()] == [bar.label for bar in bars]
    widths = sum(patch.get_width() for patch in ax.patches)  # type: ignore[attr-defined]
    assert widths == pytest.approx(run.step_time_s * 1e3)
    assert ax.get_xlabel() == "time of the core [ms]"
    assert ax.get_title(loc="left").startswith("transformer on v5e:4x8: ")


def test_the_figure_is_drawn_where_one_wants_it() -> None:
    mine = Figure().add_subplot()
    assert plot_breakdown(result(), mine) is mine
    assert mine.patches


@pytest.mark.thorough
@pytest.mark.usefixtures("unadvised")
def test_a_name_with_dollars_is_not_mathematics(tmp_path: Path) -> None:
    model = ts.models.Transformer(
        name="$\\frac$", layers=1, embed=1024, mlp=1024, heads=8, vocab=1024
    )
    plan = ts.Plan(mesh=MESH, seq_len=256, global_batch=64)
    write_report(ts.simulate(model, plan, ts.Slice("v5e", "4x8")), tmp_path)
    assert (tmp_path / "breakdown.png").stat().st_size > 1000


def test_the_shades_keep_their_order_in_greyscale() -> None:
    def grey(colour: str) -> float:
        red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    greys = [grey(PHASE_SHADES[phase]) for phase in Phase]
    assert all(later - earlier > 0.12 for earlier, later in pairwise(greys))


STABLE = {
    "step_time_s": float, "mfu": float, "hfu": float, "hbm_peak_bytes": float, "hbm_bytes": float,
    "fits": bool, "breakdown_s": dict, "tokens_per_s": float,
}  # fmt: skip


def test_json_begins_with_the_stable_keys() -> None:
    run = result()
    data = json.loads(json.dumps(document(run)))
    assert list(data)[: len(STABLE)] == list(STABLE)
    assert {key: type(data[key]) for key in STABLE} == STABLE
    assert sum(data["breakdown_s"].values()) == pytest.approx(data["step_time_s"], rel=1e-12)
    assert sum(data["memory_bytes"].values()) == pytest.approx(data["hbm_peak_bytes"])
    assert 0 < data["mfu"] < data["hfu"] < 1
    assert data["reason"] is None
    assert data["plan"]["mesh"] == MESH
    assert data["slice"] == {
        "chip": "v5e", "topology": "4x8", "twisted": False, "num_slices": 1,
        "dcn_oversubscription": 1.0, "clock_hz": 1.5e9, "chips": 32, "devices": 32,
    }  # fmt: skip
    assert data["model"]["parameters"] == MODEL.parameter_count
    assert data["placement"] == {
        "given": False,
        "axes": {
            "fsdp": [
                {"dimension": "x", "size": 2, "stride": 2},
                {"dimension": "y", "size": 4, "stride": 2},
            ],
            "tensor": [
                {"dimension": "x", "size": 2, "stride": 1},
                {"dimension": "y", "size": 2, "stride": 1},
            ],
        },
    }
    assert data["replicated"] == [
        {"dimension": "kv_heads", "size": 2, "axis": "tensor", "shards": 4}
    ]


def test_an_infeasible_plan_says_why() -> None:
    data = document(result(batch=64_000))
    assert data["fits"] is False
    assert data["reason"].startswith("needs ")
    assert "saved activations" in data["reason"]


def test_the_perfect_compiler_is_the_ideal_lowering() -> None:
    ideal = perfect_compiler(result())
    assert ideal is not None
    assert ideal.step_time_s == result("ideal").step_time_s
    assert document(result(), ideal)["ideal_step_time_s"] == ideal.step_time_s
    assert perfect_compiler(result("ideal")) is None


@pytest.mark.parametrize("batch", [32, 64])
def test_a_perfect_compiler_is_never_slower(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the lowering `ideal` is: then it is what today's does."""
    run = result(batch=batch)
    slower = replace(run, step_time_s=2 * run.step_time_s)
    monkeypatch.setattr("tpusim.report.report_files.simulate", lambda *_, **__: slower)
    assert perfect_compiler(run) is run


@pytest.mark.usefixtures("undrawn")
def test_a_report_replaces_the_one_before_and_leaves_nothing_else(tmp_path: Path) -> None:
    write_report(result(batch=32), tmp_path)
    before = {file.name for file in tmp_path.iterdir()}
    write_report(result(), tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == before
    written = json.loads((tmp_path / "result.json").read_text("utf-8"))
    assert written["step_time_s"] == result().step_time_s


@pytest.mark.usefixtures("undrawn")
def test_a_file_that_cannot_be_replaced_is_named(tmp_path: Path) -> None:
    (tmp_path / "result.json").mkdir()
    with pytest.raises(FileError, match=r"result.json is a folder, which no output replaces"):
        write_report(result(), tmp_path)
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]


def test_trying_a_folder_leaves_no_trace(tmp_path: Path) -> None:
    check_folder(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("", "utf-8")
    with pytest.raises(FileError, match="file is a file; give a folder"):
        check_folder(tmp_path / "file")
    with pytest.raises(FileError, match="under cannot be written: Not a directory"):
        check_folder(tmp_path / "file" / "under")
