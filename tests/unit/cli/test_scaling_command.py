"""`tpusim scaling`: its tables, its files, measured runs, and one sentence for each mistake."""

import json
from csv import DictReader
from pathlib import Path

import pytest
from commands import SMALL, said

import tpusim as ts
from tpusim.validation import measured_runs
from tpusim.validation.measured_points import shipped_runs

ROOT = Path(__file__).parents[3]
MEASURED = str(ROOT / "experiments" / "maxtext_32b_v5e" / "run.toml")


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "run.toml"
    file.write_text(f"{SMALL}mesh = {{ fsdp = 16 }}\n", "utf-8")
    return str(file)


def test_the_curves_are_tables(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, error = said(["scaling", path, "--chips", "8,16", "--slices", "1,2"], capsys)
    lines = out.splitlines()
    assert (code, error) == (0, "")
    assert lines[0].startswith("scaling     transformer on v5e:4x4 (16 chips), mesh fsdp=16")
    assert "            fsdp grows with the chips of a slice; the other axes stay" in lines
    assert "            dcn_data grows with the slices; the other axes stay" in lines
    titles = [line.split(":")[0] for line in lines if " scaling over " in line]
    assert titles == [
        "weak scaling over the chips of a slice", "strong scaling over the chips of a slice",
        "weak scaling over the slices", "strong scaling over the slices",
    ]  # fmt: skip
    heads = [line.split() for line in lines if line.startswith("  chips")]
    assert all(head[:4] == ["chips", "slice", "mesh", "batch"] for head in heads)
    (first, *_) = [line.split() for line in lines if line.startswith("  8 ")]
    assert first[:4] == ["8", "2x4", "fsdp=8", "16"]
    assert first[-1] == "100.0%"


def test_hosts_feed_the_points(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    hosts = ["input.workers=1", "input.decode_s=0.1"]
    given = ["--chips", "16", "--json", *(part for each in hosts for part in ("--set", each))]
    code, out, error = said(["scaling", path, *given], capsys)
    asked = ts.read_run(path, hosts)
    alone = ts.simulate(asked.model, asked.plan, asked.pod, input=asked.input)
    assert alone.input is not None
    assert alone.input.starved_by == "decode"
    assert (code, error) == (0, "")
    assert [each["step_time_s"] for each in json.loads(out)["points"]] == pytest.approx(
        [alone.step_time_s] * 2, rel=1e-12
    )


def test_published_runs_stand_beside_their_points(capsys: pytest.CaptureFixture[str]) -> None:
    """MaxText's 32B on 1 to 32 pods of v5e: six rows of the table, of the same plan."""
    out = said(["scaling", MEASURED, "--slices", "1,2,3,4,8,16,32", "--json"], capsys)[1]
    points = [each for each in json.loads(out)["points"] if each["curve"] == "weak"]
    steps = {run.id: run.step_s for run in measured_runs(shipped_runs())}
    for point in points:
        expected = f"mt-v5e-32b-{point['slices']}x"
        if point["slices"] == 3:
            assert (point["measured_run"], point["measured_step_time_s"]) == ("", None)
            continue
        assert point["measured_run"] == expected
        assert point["measured_step_time_s"] == steps[expected]
        assert point["measured_mfu"] == pytest.approx(
            point["mfu"] * point["step_time_s"] / steps[expected]
        )


@pytest.mark.parametrize(
    "changed", ["plan.matmul_dtype=int8", "plan.remat=minimal", "plan.seq_len=1024", "model.mlp=8"]
)
def test_another_plan_was_not_measured(changed: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["scaling", MEASURED, "--slices", "1", "--json", "--set", changed]
    points = json.loads(said(command, capsys)[1])["points"]
    assert {point["measured_run"] for point in points} == {""}


def test_own_runs_take_the_place_of_the_published_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file,) = shipped_runs().rglob("mt-v5e-32b-2x.toml")
    own = tmp_path / "own"
    own.mkdir()
    text = file.read_text("utf-8").replace("step_s = 12.9435", "step_s = 20.0")
    (own / "mine.toml").write_text(text, "utf-8")
    out = said(["scaling", MEASURED, "--slices", "1,2", "--measured", str(own)], capsys)[1]
    last = out.split("strong")[0].rstrip().splitlines()[-1]
    assert last.endswith("   20 s")
    assert out.count(" 12.5 s\n") == 0
    wrong = said(["scaling", MEASURED, "--measured", str(tmp_path / "none.csv")], capsys)
    assert wrong[0] == 2
    assert "none.csv: cannot be read" in wrong[2]


def test_the_folder_has_table_and_figure(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        out = said(["scaling", path, "--chips", "8,16", "--out", str(folder)], capsys)[1]
        assert out.endswith(f"\n\nreport      {folder}\n")
    one, two = ({each.name: each.read_bytes() for each in f.iterdir()} for f in folders)
    assert set(one) == {f"scaling.{ending}" for ending in ("txt", "csv", "json", "png", "svg")}
    assert one == two
    points = json.loads(one["scaling.json"])["points"]
    rows = list(DictReader(one["scaling.csv"].decode().splitlines()))
    assert [int(row["chips"]) for row in rows] == [point["chips"] for point in points]
    run = ts.read_run(path)
    own = next(point for point in points if point["chips"] == 16)
    assert own["step_time_s"] == ts.simulate(run.model, run.plan, run.pod).step_time_s


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--chips", "8;16"], "--chips is '8;16'; write numbers such as 64,128,256"),
        (["--slices", ""], "--slices is ''; write numbers such as"),
        (["--chips", "12"], "run.toml: chips = 12: v5e has no slice of 12 chips; nearest are"),
        (["--chips", "16,8"], "write whole numbers from 1 up that rise"),
        (["--axis", "data"], "run.toml: axis is 'data', which cannot grow"),
        (["--out", ""], "--out is empty; give a folder to write the table to"),
    ],
)
def test_mistakes_are_sentences(
    options: list[str], says: str, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, error = said(["scaling", path, *options], capsys)
    assert (code, out) == (2, "")
    assert says in error
