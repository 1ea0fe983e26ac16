"""`tpusim validate` and `ts.validate`: tables in, tables out, one sentence for what is no table."""

import csv
import json
from io import StringIO
from pathlib import Path

import pandas as pd
import pytest
from commands import run

import tpusim as ts
from tpusim.validation import Validation

HEADER = (
    "id,slice.chip,slice.topology,model.layers,model.embed,model.heads,model.mlp,model.vocab,"
    "plan.seq_len,plan.global_batch,plan.mesh.fsdp,measured.step_s"
)
GOOD = "good,v5e,4x4,2,512,4,2048,1000,128,64,16,0.01"
SLOW = "slow,v5e,4x4,4,512,4,2048,1000,128,64,16,0.02"
WRONG = "wrong,v5e,4x5,2,512,4,2048,1000,128,64,16,0.01"
FILE = """
[slice]
chip = "v5e"
topology = "4x4"
[model]
layers = 2
embed = 512
heads = 4
mlp = 2048
vocab = 1000
[plan]
seq_len = 128
global_batch = 64
mesh = { fsdp = 16 }
[measured]
step_s = 0.01
framework = "maxtext"
assumed = ["plan.remat"]
"""


def table(tmp_path: Path, *lines: str) -> str:
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return str(path)


def test_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["validate", table(tmp_path, HEADER, GOOD, SLOW)]) == 0
    path = table(tmp_path, HEADER, GOOD, WRONG)
    assert run(["validate", path, "--allow-failures"]) == 0
    capsys.readouterr()
    assert run(["validate", path]) == 1
    out, error = capsys.readouterr()
    assert error == ""
    assert "error: v5e has no slice 4x5" in out


def test_a_defect_is_never_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpusim.validation.outcome.simulate", lambda *_: 1 / 0)
    assert run(["validate", table(tmp_path, HEADER, GOOD), "--allow-failures"]) == 1


def test_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, folder = table(tmp_path, HEADER, GOOD, WRONG), tmp_path / "out"
    written = []
    for _ in range(2):
        run(["validate", path, "--out", str(folder)])
        written.append({file.name: file.read_bytes() for file in folder.iterdir()})
    assert written[0] == written[1]
    assert set(written[0]) == {"validation.csv", "validation.json", "runs.csv"}
    good, wrong = csv.DictReader(StringIO((folder / "validation.csv").read_text("utf-8")))
    columns = ["id", "measured_s", "predicted_s", "low_s", "high_s", "error", "status", "reason"]
    assert list(good) == [*columns, "span_low_s", "span_high_s", "in_span"]
    assert good["span_low_s"] == good["in_span"] == ""
    assert 0 < float(good["low_s"]) < float(good["high_s"])
    assert (wrong["low_s"], wrong["high_s"]) == ("", "")
    assert float(good["error"]) == pytest.approx(float(good["predicted_s"]) / 0.01 - 1)
    assert (wrong["predicted_s"], wrong["error"], wrong["status"]) == ("", "", "error")
    document = json.loads((folder / "validation.json").read_text("utf-8"))
    assert (document["runs"], document["failed"]) == (2, 1)
    assert document["coverage_80"] in (0, 1)
    assert document["mean_error"] == pytest.approx(float(good["error"]))
    assert document["by_chip"]["v5e"]["failed"] == document["by_family"]["dense"]["failed"] == 1
    assert capsys.readouterr().out.endswith(f"report      {folder}\n")


def test_python_and_command_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = table(tmp_path, f"{HEADER},model.experts", f"{GOOD},", f"{SLOW},8")
    found = ts.validate(pd.read_csv(path))
    assert run(["validate", path]) == 1
    assert capsys.readouterr().out == f"{found}\n"
    frame = found.frame.set_index("id")
    assert frame.loc["good", "status"] == "ok"
    assert "how many of the 8 experts a token goes to" in frame.loc["slow", "reason"]
    shares = [name for name in frame if name.startswith("share ")]
    assert frame.loc["good", shares].sum() == pytest.approx(1)
    assert found.statistics["failed"] == found.failed == 1


OPEN = f"""{FILE}[measured.open]
"plan.remat" = ["full", "minimal"]
"""


def opened(tmp_path: Path, text: str) -> Validation:
    path = tmp_path / "run.toml"
    path.write_text(text, "utf-8")
    return ts.validate(path)


def test_a_span_is_over_all_that_the_source_leaves_open(tmp_path: Path) -> None:
    found = opened(tmp_path, OPEN)
    (one,) = found.outcomes
    steps = [
        ts.validate(pd.DataFrame(rows)).outcomes[0].predicted_s
        for rows in ([_row("full")], [_row("minimal")])
    ]
    assert (one.span_low_s, one.span_high_s) == (min(steps), max(steps))
    assert one.predicted_s == steps[0]
    assert one.in_span is False
    assert found.statistics["spans"] == {"runs": 1, "inside": 0, "outside": ["run"]}
    assert "span over what the source leaves open" in str(found)
    assert "outside  plan.remat" in str(found)


def _row(remat: str) -> dict[str, object]:
    names, cells = HEADER.split(","), GOOD.split(",")
    return {**dict(zip(names, cells, strict=True)), "plan.remat": remat}


def test_a_rate_is_compared_for_as_much_work(tmp_path: Path) -> None:
    """Seconds that are derived from examples per second grow with the batch that is assumed."""
    text = FILE.replace('["plan.remat"]', '["plan.global_batch"]')
    values = "[measured.open]\n'plan.global_batch' = [64, 128]\n"
    (printed,) = opened(tmp_path, text + values).outcomes
    rate = 'step_is = "derived from printed examples/s"\nexamples_per_s = 6400\n'
    (derived,) = opened(tmp_path, text + rate + values).outcomes
    assert printed.span_low_s == printed.predicted_s == derived.span_high_s
    assert derived.span_low_s == pytest.approx(printed.span_high_s / 2)


def test_what_does_not_fit_is_no_plausible_run(tmp_path: Path) -> None:
    text = FILE.replace('["plan.remat"]', '["plan.global_batch"]')
    text += "[measured.open]\n'plan.global_batch' = [64, 1048576]\n"
    (one,) = opened(tmp_path, text).outcomes
    assert one.span is not None
    assert (one.span.left_out, one.span.high_s) == (1, one.predicted_s)


def test_a_combination_that_cannot_run_is_named(tmp_path: Path) -> None:
    text = FILE.replace('["plan.remat"]', '["plan.global_batch"]')
    (one,) = opened(tmp_path, f"{text}[measured.open]\n'plan.global_batch' = [64, 63]\n").outcomes
    assert one.status == "error"
    assert one.reason.startswith("measured.open, plan.global_batch=63: ")


def test_the_function_is_not_hidden_by_its_package() -> None:
    import tpusim.validation.error_table

    assert tpusim.validation.error_table
    assert callable(ts.validate)


OLD = "id,chip,topology,n_layers,d_model,n_heads,d_ff,vocab,seq_len,global_batch,mesh,step_s"
MISTAKES = [
    ((), "the file is empty"),
    ((HEADER,), "a header and no runs"),
    (
        (HEADER.replace("measured.step_s", "measured.stepp_s"), GOOD),
        "no key of [measured]; did you mean 'step_s'",
    ),
    (
        (HEADER.replace("model.layers", "model.layer"), GOOD),
        "the column 'model.layer' is no key of [model]; did you mean 'layers'?",
    ),
    (
        (HEADER.replace("model.layers", "model.zzzz"), GOOD),
        "is no key of [model]; docs/run_file.md lists them",
    ),
    ((HEADER.replace(",measured.step_s", ",seconds"), GOOD), "measured.step_s is missing"),
    (("run;chip;step", "a;v4;3"), "the column id is missing; a table has the columns id and"),
    ((OLD, "a,v4,4x4x4,2,512,4,2048,1000,128,64,fsdp=64,1"), "step_s is of the earlier form"),
    ((OLD, "a,v4,4x4x4,2,512,4,2048,1000,128,64,fsdp=64,1"), "plan.mesh.fsdp, measured.step_s"),
    ((f"{HEADER},plan.remta", f"{GOOD},full"), "is no key of [plan]; did you mean 'remat'?"),
    ((f"{HEADER},measured.step_s", f"{GOOD},3"), "'measured.step_s' is in the header twice"),
    ((HEADER, GOOD, GOOD), "the id 'good' is in several rows"),
    ((HEADER, GOOD.replace("good", "")), "row 1: id is empty"),
    ((HEADER, GOOD.replace("0.01", "fast")), "row 1 ('good'): measured.step_s is the text 'fast'"),
    ((HEADER, GOOD.replace("0.01", "nan")), "measured.step_s is nan"),
    ((HEADER, GOOD.replace("0.01", "-1")), "measured.step_s is -1.0; write a number above 0"),
    ((HEADER, GOOD.replace("0.01", "")), "row 1 ('good'): the section [measured] is missing"),
    ((HEADER, f"{GOOD},more"), "row 1 has 13 cells and the header 12"),
    ((HEADER, '"good'), "not a table of comma-separated values"),
]
REASONS = [
    (GOOD.replace("512", "51.2"), "model.embed is 51.2; write a whole number"),
    (GOOD.replace("512", "0"), "model.embed is 0; write a whole number"),
    (GOOD.replace("64", ""), "plan.global_batch is missing; write a whole number"),
    (GOOD.replace("v5e", "v5x"), "'v5x'"),
]
"""Rows of runs that cannot be, and what is said of them."""


@pytest.mark.parametrize(("row", "reason"), REASONS)
def test_what_cannot_run_is_a_row_with_its_reason(
    row: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["validate", table(tmp_path, HEADER, row, SLOW)]) == 1
    out, error = capsys.readouterr()
    assert error == ""
    (told,) = (line for line in " ".join(out.split()).split("slow v5e")[:1])
    assert f"error: {reason}" in told or reason in told


@pytest.mark.parametrize(("lines", "sentence"), MISTAKES)
def test_what_is_no_table_is_one_sentence(
    lines: tuple[str, ...], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = table(tmp_path, *lines)
    assert run(["validate", path]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith(f"error: {path}: ")
    assert error.count("\n") == 1
    assert sentence in error


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(b"\xff\xfe\x00", "not a text file (byte 0"), (b"id\0,chip", "NUL"), (b" \n", "is empty")],
)
def test_binary_files(
    content: bytes, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(content)
    assert run(["validate", str(path)]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["validate", "none.csv"], "none.csv: cannot be read: No such file"),
        (["validate", "EMPTY"], "the folder has no run files; write one"),
        (["validate", "/dev/null"], "not a regular file"),
        (["validate", "RUNS", "--out", ""], "--out is empty"),
        (["validate", "RUNS", "--out", "RUNS"], "is a file; give a folder"),
    ],
)
def test_paths(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = table(tmp_path, HEADER, GOOD)
    (tmp_path / "none").mkdir()
    names = {"RUNS": path, "EMPTY": str(tmp_path / "none")}
    assert run([names.get(argument, argument) for argument in arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_what_is_no_frame() -> None:
    with pytest.raises(ts.TpusimError, match="validate is given 3; write the path of a folder"):
        ts.validate(3)  # type: ignore[arg-type]
    with pytest.raises(ts.TpusimError, match="the column id is missing"):
        ts.validate(pd.DataFrame())


def files(folder: Path, **texts: str) -> Path:
    for name, text in texts.items():
        path = folder / f"{name.replace('__', '/')}.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
    return folder


def test_a_folder_of_run_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of inner folders too; a file and the row of a table are the same run."""
    slow = FILE.replace("layers = 2", "layers = 4").replace("0.01", "0.02")
    folder = files(tmp_path, b__slow=slow, good=FILE)
    found = ts.validate(folder)
    assert [one.run.id for one in found.outcomes] == ["slow", "good"]
    assert run(["validate", str(folder)]) == 0
    out = capsys.readouterr().out
    assert out == f"{found}\n"
    assert "assumed: plan.remat (slow and 1 other)" in out
    (alone,) = ts.validate(folder / "good.toml").outcomes
    path = table(tmp_path, f"{HEADER},measured.framework,measured.assumed",
                 f"{GOOD},maxtext,['plan.remat']", f"{SLOW},maxtext,['plan.remat']")  # fmt: skip
    good, other = ts.validate(path).outcomes
    assert alone.predicted_s == found.outcomes[1].predicted_s == good.predicted_s
    assert other.predicted_s == found.outcomes[0].predicted_s
    assert good.run.measured == alone.run.measured


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        ({"x": FILE.partition("[measured]")[0]}, "x.toml: the section [measured] is missing"),
        ({"a__x": FILE, "x": FILE}, "several files are called x.toml"),
        ({"x": FILE.replace("step_s", "stepp")}, "x.toml: [measured] has an unknown key 'stepp'"),
        ({"x": "[slice"}, "x.toml: not valid TOML"),
    ],
)
def test_what_is_no_folder_of_measured_runs(
    texts: dict[str, str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["validate", str(files(tmp_path, **texts))]) == 2
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1)
    assert error.startswith(f"error: {tmp_path}: ")
    assert sentence in error


def test_a_run_of_a_folder_that_cannot_be_has_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = files(tmp_path, good=FILE, bad=FILE.replace("remat", "x").replace("4x4", "4x5"))
    assert run(["validate", str(folder)]) == 1
    assert "error: v5e has no slice 4x5" in capsys.readouterr().out


def test_other_columns_are_named_and_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["validate", table(tmp_path, f"{HEADER},wandb_link", f"{GOOD},x")]) == 0
    assert "nothing reads the columns wandb_link" in capsys.readouterr().out


def test_a_spreadsheet_s_mark_and_blank_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(f"\ufeff{HEADER}\r\n\r\n{GOOD}\r\n", "utf-8")
    assert run(["validate", str(path)]) == 0


@pytest.mark.parametrize("missing", [pd.NA, pd.NaT, None, float("nan"), ""])
def test_a_frame_may_have_gaps_of_any_kind(missing: object, tmp_path: Path) -> None:
    frame = pd.read_csv(table(tmp_path, f"{HEADER},model.kv_heads", f"{GOOD},4", f"{SLOW},4"))
    frame = frame.assign(id=["a", "b"]).astype(object)
    frame.loc[1, "model.kv_heads"] = missing
    assert [one.status for one in ts.validate(frame).outcomes] == ["ok", "ok"]
    assert [one.status for one in ts.validate(frame.convert_dtypes()).outcomes] == ["ok", "ok"]
    frame.loc[1, "measured.step_s"] = missing
    with pytest.raises(ts.TpusimError, match=r"row 2 \('b'\): the section \[measured\] is missing"):
        ts.validate(frame)
