"""Operations of 7x in profiles, predicted from their HLO lines, and tables of any kind."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest
from scripts import EXPERIMENTS, script

from tpusim.costs import collective_seconds
from tpusim.hardware import DIE, Slice, Span
from tpusim.program import CollectiveKind

FOLDER = EXPERIMENTS / "operations"
FEWEST = 10
"""Rows of a kind that its error is held to."""


@pytest.fixture(scope="module")
def run() -> Iterator[ModuleType]:
    sys.path.insert(0, str(FOLDER))
    yield script(FOLDER / "run.py")
    sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def predicted(run: ModuleType) -> pd.DataFrame:
    return run.predicted_rows(run.read_table(FOLDER / "measured_7x.csv"))


def test_each_row_is_predicted(predicted: pd.DataFrame) -> None:
    assert list(predicted["note"].unique()) == [""]


@pytest.mark.parametrize(
    ("column", "low", "high"),
    [("median_error", 0, 8), ("p90_error", 0, 30), ("median_ratio", 0.96, 1.04)],
)
def test_kinds_of_ten_rows_or_more_are_near(
    run: ModuleType, predicted: pd.DataFrame, column: str, low: float, high: float
) -> None:
    found = run.by_chip_and_kind(predicted)
    many = found[found["rows"] >= FEWEST]
    assert len(many) == 5
    assert many[column].between(low, high).all(), many


def test_the_page_has_the_figures_of_today(run: ModuleType, predicted: pd.DataFrame) -> None:
    page = (FOLDER / "README.md").read_text("utf-8")
    found = run.by_chip_and_kind(predicted)
    worst = found[found["rows"] >= FEWEST].max()
    assert f"within **{worst['median_error']:.1f} %** in the median" in page
    for (_, kind), row in found.iterrows():
        after = f"{row['median_error']:.1f} | {row['p90_error']:.1f} | {row['median_ratio']:.2f} |"
        assert f"| {kind} | {row['rows']:.0f} |" in page
        assert after in page, kind


ROW = {"id": "x", "chip": "7x", "kind": "matmul", "params": "bf16 m=512 k=512 n=512"}


def predicted_row(run: ModuleType, **cells: str) -> pd.Series:
    return run.predicted_rows([ROW | {"measured_us": "3"} | cells]).iloc[0]


@pytest.mark.parametrize(
    "params",
    [
        "% = ",
        "% = bf16[8,128]{1,0:T(8,128)(2,1)} fusion(",
        "% = bf16[8,128]{1,0} fusion(bf16[8,12",
        "% = (f32[8]{0}, f32[8]{0}) custom-call(f32[8]{0} %, (n=2; hbm 1.00 MB vmem 0.00 MB)",
        "% = bf16[8,128]{1,0} all-reduce(bf16[8,128]{1,0} %), replica_groups={{0,",
        "% = bf16[8]{0} all-reduce(bf16[8]{0} %), replica_groups=[1,2]<=[299999999999], to_apply=%",
        "% = bf16[8,128]{1,0:T(8,128)} unknown-opcode(bf16[8,128]{1,0:T(8,128)} %)",
        "% = s32[]{:T(128)} copy(s32[]{:T(128)} %)",
    ],
)
def test_any_line_gives_a_time_or_a_note(run: ModuleType, params: str) -> None:
    found = predicted_row(run, params=params)
    assert found["note"].startswith("no prediction: ") or found["predicted_us"] > 0


def test_a_whole_line_of_a_profile_is_the_one_of_closest_time(run: ModuleType) -> None:
    cut = "x: loop fusion | % = f32[8]{0} negate(f32[8]{0} (n=2; hbm 0.00 MB vmem 0.00 MB)"
    lines = [(f"%negate.{n} = f32[8]{{0}} negate(f32[8]{{0}} %p), m={n}", float(n)) for n in (1, 5)]
    row = {"id": "x", "chip": "7x", "kind": "loop fusion", "params": cut, "measured_us": 4.0}
    assert run.Measured.of(row, [*lines, ("%other = f32[8]{0} copy()", 4.0)]).line == lines[1][0]
    assert Path(run.__file__).name == "run.py"


@pytest.mark.parametrize(
    ("cells", "note"),
    [
        ({}, ""),
        ({"measured_us": "fast"}, "measured_us is 'fast'"),
        ({"measured_us": ""}, "measured_us is ''"),
        ({"measured_us": "0"}, "measured_us is '0'"),
        ({"measured_us": "inf"}, "measured_us is 'inf'"),
        ({"chip": "v9"}, "no chip 'v9'"),
        (
            {"chip": "v9", "slice": "2x2", "kind": "step category: step", "id": "qwen3-8b"},
            "no chip",
        ),
        ({"kind": ""}, "has no HLO line"),
        ({"params": ""}, "has no m, k and n"),
        ({"params": "f16 m=512 k=512 n=512"}, "dtype 'f16' is none of bf16"),
        ({"kind": "attention in step", "params": "fwd"}, "has no blocks"),
    ],
)
def test_a_row_that_cannot_be_read_gets_a_note(
    run: ModuleType, cells: dict[str, str], note: str
) -> None:
    found = predicted_row(run, **cells)
    assert note in found["note"]
    assert (found["predicted_us"] > 0) == (not note)


HEADER = ",".join([*ROW, "measured_us"])
TWO = f"{HEADER}\n1,7x,matmul,bf16 m=512 k=512 n=512,3\n2,7x,matm"


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ("", "no column 'id'; give a CSV table with the columns id, chip, kind"),
        (HEADER, "a table without rows"),
        (TWO.replace(",", ";"), "no column 'id'"),
        (TWO.replace("measured_us", "us"), "no column 'measured_us'"),
        (TWO.replace("measured_us", "measured_us,id"), "two columns 'id'"),
        ("\xff", "not a text file"),
        (None, "a folder"),
    ],
)
def test_what_is_no_table_is_refused(
    run: ModuleType, table: str | None, sentence: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = tmp_path if table is None else tmp_path / "table.csv"
    if table is not None:
        path.write_bytes(table.encode("latin-1"))
    monkeypatch.setattr(sys, "argv", ["run.py", str(path), "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit, match="2"):
        run.main()
    said = capsys.readouterr().err
    assert said.startswith(f"error: {path}: ")
    assert sentence in said


def test_a_table_that_was_cut_in_another_order_is_read_as_far_as_it_goes(
    run: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    cells = [line.split(",") for line in TWO.split("\n")]
    lines = [",".join(line[::-1] if len(line) == 5 else line[:1]) for line in cells]
    path = tmp_path / "table.csv"
    path.write_text("\ufeff" + "\n".join(lines), "utf-8")
    monkeypatch.setattr(sys, "argv", ["run.py", str(path), "--out", str(tmp_path / "out")])
    run.main()
    assert "1 of 2 rows have no prediction" in capsys.readouterr().out
    written = pd.read_csv(tmp_path / "out" / "operations.csv", keep_default_na=False)
    assert list(written["note"]) == ["", "no prediction: '' has no HLO line"]
    assert (tmp_path / "out" / "operations.json").is_file()


REDUCED = "% = bf16[1024,5120]{1,0} all-reduce(bf16[1024,5120]{1,0} %), replica_groups="


@pytest.mark.parametrize(
    ("chip", "place", "groups", "spans"),
    [
        ("v6e", "2x4", "[1,8]<=[8]", [Span(0, 2), Span(1, 4)]),
        ("v6e", "2x4", "[2,4]<=[8]", [Span(1, 4)]),
        ("v6e", "one host", "[1,4]<=[4]", [Span(0, 2), Span(1, 2)]),
        ("v2", "2x2", "[1,8]<=[8]", [Span(DIE, 2), Span(0, 2), Span(1, 2)]),
        ("v4", "2x2x4", "[1,16]<=[16]", [Span(0, 2), Span(1, 2), Span(2, 4)]),
        ("7x", "1 chip", "{{0,1}}", [Span(DIE, 2)]),
        ("7x", "", "[1,16]<=[16]", []),
    ],
)
def test_the_groups_of_a_line_lie_on_the_slice_of_its_row(
    run: ModuleType, chip: str, place: str, groups: str, spans: list[Span]
) -> None:
    """Where the group is larger than the slice, a note says so."""
    params = f"{REDUCED}{groups}, use_global_device_ids=true, to_apply=%"
    found = predicted_row(run, chip=chip, slice=place, kind="all-reduce", params=params)
    if not spans:
        assert "a group of 16 devices is no part of 7x:2x2x1" in found["note"]
        return
    shape = place if "x" in place else "2x2x1" if chip == "7x" else "2x2"
    pod = Slice(chip, shape)
    seconds = collective_seconds(
        CollectiveKind.ALL_REDUCE, 2 * 1024 * 5120, spans, pod.chip, pod.topology
    )
    assert found["predicted_us"] == pytest.approx(1e6 * seconds)
