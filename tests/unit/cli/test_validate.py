"""`tpusim validate` and `ts.validate`: tables in, tables out, one sentence for what is no table."""

import csv
import json
from io import StringIO
from pathlib import Path

import pandas as pd
import pytest

import tpusim as ts
from tpusim.cli.main import run

HEADER = "id,chip,topology,n_layers,d_model,n_heads,d_ff,vocab,seq_len,global_batch,mesh,step_s"
GOOD = "good,v5e,4x4,2,512,4,2048,1000,128,64,fsdp=16,0.01"
SLOW = "slow,v5e,4x4,4,512,4,2048,1000,128,64,fsdp=16,0.02"
WRONG = "wrong,v5e,4x5,2,512,4,2048,1000,128,64,fsdp=16,0.01"


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
    assert list(good) == columns
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
    path = table(tmp_path, f"{HEADER},experts", f"{GOOD},", f"{SLOW},8")
    found = ts.validate(pd.read_csv(path))
    assert run(["validate", path]) == 1
    assert capsys.readouterr().out == f"{found}\n"
    frame = found.frame.set_index("id")
    assert frame.loc["good", "status"] == "ok"
    assert "how many of the 8 experts a token goes to" in frame.loc["slow", "reason"]
    shares = [name for name in frame if name.startswith("share ")]
    assert frame.loc["good", shares].sum() == pytest.approx(1)
    assert found.statistics["failed"] == found.failed == 1


def test_the_function_is_not_hidden_by_its_package() -> None:
    import tpusim.validation.error_table

    assert tpusim.validation.error_table
    assert callable(ts.validate)


MISTAKES = [
    ((), "the file is empty"),
    ((HEADER,), "a header and no runs"),
    ((HEADER.replace("n_layers", "n_layer"), GOOD), "column n_layers is missing; rename"),
    ((HEADER.replace("n_layers", "n_layer"), GOOD), "'n_layer'"),
    (("run;chip;step", "a;v4;3"), "the column id is missing; the columns that every run needs"),
    ((f"{HEADER},remta", f"{GOOD},full"), "no column is called 'remta'; did you mean 'remat'?"),
    ((f"{HEADER},step_s", f"{GOOD},3"), "the column 'step_s' is in the header twice"),
    ((HEADER, GOOD, GOOD), "the id 'good' is in several rows"),
    ((HEADER, GOOD.replace("0.01", "fast")), "row 1 ('good'): step_s is 'fast'; write a number"),
    ((HEADER, GOOD.replace("0.01", "nan")), "step_s is 'nan'"),
    ((HEADER, GOOD.replace("0.01", "-1")), "step_s is '-1'; write a number above 0"),
    ((HEADER, GOOD.replace("0.01", "")), "step_s is empty"),
    ((HEADER, GOOD.replace("512", "51.2")), "d_model is '51.2'; write a whole number"),
    ((HEADER, GOOD.replace("512", "0")), "d_model is '0'"),
    ((f"{HEADER},causal", f"{GOOD},maybe"), "causal is 'maybe'; write 0 or 1"),
    ((HEADER, f"{GOOD},more"), "row 1 has 13 cells and the header 12"),
    ((HEADER, '"good'), "not a table of comma-separated values"),
]


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
        (["validate", "."], "a folder; give the path of a CSV file"),
        (["validate", "/dev/null"], "not a regular file"),
        (["validate", "RUNS", "--out", ""], "--out is empty"),
        (["validate", "RUNS", "--out", "RUNS"], "is a file; give a folder"),
    ],
)
def test_paths(
    arguments: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = table(tmp_path, HEADER, GOOD)
    assert run([argument.replace("RUNS", path) for argument in arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_what_is_no_frame(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ts.TpusimError, match="takes a DataFrame"):
        ts.validate("runs.csv")  # type: ignore[arg-type]
    with pytest.raises(ts.TpusimError, match="the column id is missing"):
        ts.validate(pd.DataFrame())


def test_other_columns_are_named_and_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["validate", table(tmp_path, f"{HEADER},wandb_link", f"{GOOD},x")]) == 0
    assert "nothing reads the columns wandb_link" in capsys.readouterr().out


def test_a_spreadsheet_s_mark_and_blank_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(f"\ufeff{HEADER}\r\n\r\n{GOOD}\r\n", "utf-8")
    assert run(["validate", str(path)]) == 0
