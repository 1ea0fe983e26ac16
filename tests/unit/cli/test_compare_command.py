"""`tpusim compare`: run files, result files and programs, and one sentence for each mistake."""

import json
from pathlib import Path

import pytest
from commands import SMALL, said

ROOT = Path(__file__).parents[3]
HLO = str(ROOT / "tests" / "data" / "hlo" / "plain" / "scan_mlp_v5e_2x2.hlo.gz")
RUN = SMALL.replace("[plan]", "[plan]\nmesh = { fsdp = 16 }")


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "run.toml"
    file.write_text(RUN, "utf-8")
    return str(file)


def compared(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "compare.json").read_text("utf-8"))
    return found


@pytest.mark.usefixtures("undrawn")
def test_one_run_file_is_compared_with_a_change_of_it(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change = ["--set", "plan.remat=none", "--out", str(tmp_path / "out")]
    code, out, error = said(["compare", path, *change], capsys)
    assert (code, error) == (0, "")
    words = " ".join(out.split())
    assert f" A transformer on v5e:4x4, from {path} " in words
    assert f" B transformer on v5e:4x4, from {path} --set plan.remat=none " in words
    assert "\nsettings    plan.remat: full | none\n" in out
    changed = ["simulate", path, "--set", "plan.remat=none", "--out", str(tmp_path / "b")]
    assert said(changed, capsys)[0] == 0
    result = json.loads((tmp_path / "b" / "result.json").read_text("utf-8"))
    assert compared(tmp_path / "out")["b_s"] == pytest.approx(result["step_time_s"], rel=1e-12)


@pytest.mark.usefixtures("undrawn")
def test_a_run_its_folder_and_its_file_are_the_same(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "report"
    assert said(["simulate", path, "--out", str(folder)], capsys)[0] == 0
    paths = [path, str(folder), str(folder / "result.json")]
    code, out, _ = said(["compare", *paths, "--out", str(tmp_path / "out")], capsys)
    assert code == 0
    assert "B takes as long as A" in out
    assert "C takes as long as A" in out
    assert compared(tmp_path / "out")["difference_ps"] == 0
    assert compared(tmp_path / "out")["settings"] == {}


@pytest.mark.usefixtures("undrawn")
def test_a_program_and_a_plan(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("jaxlib.xla_client")
    out = ["--out", str(tmp_path / "out"), "--slice", "v5e:2x2", "--model-flops", "1e12"]
    code, _, error = said(["compare", HLO, path, *out], capsys)
    assert (code, error) == (0, "")
    found = compared(tmp_path / "out")
    assert sum(found["parts_ps"].values()) == found["difference_ps"]  # type: ignore[attr-defined]
    replay = ["replay", HLO, *out[2:], "--out", str(tmp_path / "replay")]
    assert said(replay, capsys)[0] == 0
    result = json.loads((tmp_path / "replay" / "result.json").read_text("utf-8"))
    assert found["a_s"] == pytest.approx(result["step_time_s"], rel=1e-12)
    assert found["steps"]["A"]["mfu"] == result["mfu"]  # type: ignore[index]


MISTAKES = [
    (["compare"], "Missing argument 'STEP'"),
    (["compare", "PATH"], "run.toml is given alone, and a comparison has two or more; give run "),
    (["compare", "PATH", "none.toml"], "none.toml: cannot be read"),
    (["compare", "PATH", "none.json"], "none.json: cannot be read: No such file or directory; give "
     "a result.json that `tpusim simulate --out DIR` wrote"),
    (["compare", "PATH", "FOLDER"], "result.json: cannot be read"),
    (["compare", "PATH", "none.hlo"], "none.hlo: cannot be read"),
    (["compare", "PATH", "PATH", "--set", "plan.remat=none"], "changes one run file, which is then "
     "compared with itself as it is written, but 2 files are given"),
    (["compare", "x.json", "--set", "plan.remat=none"], "changes one run file"),
    (["compare", "PATH", "PATH", "--slice", "v5e:2x2"], "are for compiled programs, and no HLO"),
    (["compare", "PATH", "PATH", "--mesh", "a=b"], "--mesh is 'a=b'"),
    (["compare", "PATH", "PATH", "--out", "PATH"], "run.toml is a file; give a folder"),
    (["compare", "PATH", "PATH", "--out", ""], "--out is empty; give a folder to write the comp"),
    (["compare", "PATH", "--set", "plan.remat=ful"], "plan.remat is 'ful': did you mean 'full'?"),
    (["compare", *["PATH"] * 27], "compare is given 27 steps; give 2 to 26"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "sentence"), MISTAKES)
def test_a_mistake_is_one_sentence_and_exit_2(
    arguments: list[str], sentence: str, path: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "folder").mkdir()
    names = {"PATH": path, "FOLDER": str(tmp_path / "folder")}
    code, out, error = said([names.get(part, part) for part in arguments], capsys)
    assert (code, out) == (2, "")
    assert sentence in error
