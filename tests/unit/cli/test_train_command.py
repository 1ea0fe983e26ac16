"""`tpusim train`: its report, its files, several runs, and one sentence for each mistake."""

import json
from pathlib import Path

import pytest
from commands import SMALL, said
from commands import run as run_command

from tpusim.report import plot_training, training_data
from tpusim.runfile import read_run
from tpusim.training import train

TRAIN = """mesh = { fsdp = 16 }
[train]
tokens = 1e8
[train.evaluations]
every = 500
examples = 100
[train.checkpoints]
every = 1000
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "run.toml"
    file.write_text(SMALL + TRAIN, "utf-8")
    return str(file)


def test_the_report_and_its_files(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    code, out, error = said(["train", path, "--out", str(folder)], capsys)
    assert (code, error) == (0, "")
    assert out.startswith("training    transformer on v5e:4x4 (16 chips)")
    assert {file.name for file in folder.iterdir()} == {
        "training.txt", "training.json", "training.png", "training.svg", "report.html",
    }  # fmt: skip
    assert json.loads((folder / "training.json").read_text())["steps"] == 24415


def test_the_page_can_be_left_out(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    assert said(["train", path, "--out", str(folder), "--no-html"], capsys)[0] == 0
    assert "report.html" not in {file.name for file in folder.iterdir()}


def test_json_and_settings(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", path, "--json", "--set", "train.tokens=2e8", "--set", "plan.remat=none"]
    code, out, _ = said(words, capsys)
    assert code == 0
    assert json.loads(out)["steps"] == 48829


def test_several_runs_are_a_table(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = run_command(["train", path, path])
    out, error = capsys.readouterr()
    assert code == 0
    assert error == f"run 1 of 2: {path}\nrun 2 of 2: {path}\n"
    assert [line.split()[0] for line in out.splitlines()] == ["run", path, path]


def test_a_run_with_train_simulates_too(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(["simulate", path], capsys)[0] == 0


def test_the_figure_shows_every_bucket_but_the_steps(path: str) -> None:
    given = read_run(path)
    assert given.train is not None
    result = train(given.model, given.plan, given.pod, given.train)
    data = training_data(result)
    without = sum(bar.seconds for bar in data.bars)
    assert without + result.buckets["GOODPUT"].value == pytest.approx(result.wall_s.value)
    assert data.progress[0] == (0.0, 0)
    assert data.progress[-1] == (result.wall_s.value, result.steps)
    lower = plot_training(data).get_figure(root=True).axes[1]  # type: ignore[union-attr]
    labels = [label.get_text() for label in lower.get_yticklabels()]
    assert labels == [bar.bucket for bar in data.bars]


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("train.stepz=3", "[train] has an unknown key 'stepz'; did you mean 'steps'?"),
        ("train.steps=3", "tokens, steps are given; write one"),
        ("train=3", "train is 3; write a section [train]"),
        ("train.checkpoints=3", "train.checkpoints is 3; write a section [train.checkpoints]"),
        ("train.checkpoints={}", "train.checkpoints.every is missing; write the steps between"),
        ("train.evaluations.often=3", "[train.evaluations] has an unknown key 'often'"),
        ('train.checkpoints.capacity="1 MB"', "more than the 977 KiB of train.checkpoints"),
    ],
)
def test_a_mistake_is_one_sentence(
    setting: str, words: str, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, error = said(["train", path, "--set", setting], capsys)
    assert code == 2
    assert error.startswith(f"{path} --set {setting}: ")
    assert words in error


def test_a_file_without_train_and_a_folder_for_two(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = tmp_path / "plain.toml"
    plain.write_text(f"{SMALL}mesh = {{ fsdp = 16 }}\n", "utf-8")
    code, _, error = said(["train", str(plain)], capsys)
    assert (code, "no section [train]; write one with tokens" in error) == (2, True)
    code, _, error = said(["train", path, path, "--out", str(tmp_path / "out")], capsys)
    assert (code, "--out is for one run, and 2 are given" in error) == (2, True)


@pytest.mark.thorough
def test_advice_stands_below_the_report_and_loses_no_files(
    path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, folder = Path(path), tmp_path / "out"
    failures = "[failures]\nruns = 20\ncauses = { job = 20, machine = 0.1 }\nspares = 0\n"
    file.write_text(file.read_text("utf-8") + failures, "utf-8")
    code, out, error = said(["train", path, "--advise", "--out", str(folder)], capsys)
    assert (code, error) == (0, "")
    assert out.startswith("training    ")
    assert "\n\ncheckpoints every " in out
    assert {file.name for file in folder.iterdir()} == {
        "training.txt", "training.json", "report.html",
        *(f"{name}.{kind}" for name in ("training", "failures", "interval")
          for kind in ("png", "svg")),
    }  # fmt: skip
    assert (folder / "training.txt").read_text("utf-8") == out.partition("\n\nreport ")[0] + "\n"
    assert "What would shorten it?" in (folder / "report.html").read_text("utf-8")
    told = said(["train", path, "--advise", "--json"], capsys)[1]
    assert told == (folder / "training.json").read_text("utf-8")
    facts = json.loads(told)
    assert facts["advice"]["interval"]["every"] > 0
    assert "failures" in facts
