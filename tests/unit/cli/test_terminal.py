"""The terminal: widths, JSON alone on stdout, quiet, stdin, help with values, completion."""

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from commands import SMALL, run, said
from extent import thorough
from inputs import SLOT_SCHEDULES

import tpusim as ts
from tpusim.cli.completion import complete_chip, complete_setting
from tpusim.plan import CIRCULAR, PLAN_CHOICES, PLAN_KEYS, Plan
from tpusim.plan.pipeline import ScheduleName

ROOT = Path(__file__).parents[3]
RUN = f"{SMALL}mesh = {{ fsdp = 16 }}\n"
PIPED = f"{SMALL}microbatches = 4\nmesh = {{ stage = 2, fsdp = 8 }}\n"
SWEEP = (
    f'{SMALL}[sweep]\naxes = ["data", "fsdp", "tensor"]\nvary = {{ remat = ["full", "dots"] }}\n'
)
SEARCH = f'{SMALL}[search]\naxes = ["fsdp", "tensor"]\n'
TEXTS = {"run": RUN, "piped": PIPED, "sweep": SWEEP, "search": SEARCH}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in TEXTS.items():
        (tmp_path / f"{name}.toml").write_text(text, "utf-8")
    (tmp_path / "runs").mkdir()
    for name in ("mlp11-v4-480b", "mt-v4-22b-202308-1x"):
        shutil.copy(ROOT / f"tests/measured/runs/calibration/{name}.toml", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


HLO = str(ROOT / "tests/data/hlo/decode_v5e_2x4.hlo.gz")
COMMANDS = [
    "chips",
    "chips v5e",
    "simulate run.toml --stats",
    "simulate piped.toml --explain pipeline",
    *(f"simulate run.toml --explain {name}" for name in ("placement", "collectives", "lines")),
    "simulate run.toml --explain passes",
    f"replay {HLO} --explain collectives",
    "sweep sweep.toml --workers 1",
    "scaling run.toml --chips 8,16",
    "validate runs",
    "explain conv --chip v5e --input 256x224x224x3 --kernel 7x7x64 --stride 2",
    thorough("advise run.toml"),
    "compare run.toml piped.toml",
    thorough("compare run.toml --set plan.remat=none"),
    thorough(f"compare run.toml {HLO}"),
    "train run.toml --set train.tokens=1e9",
    "search search.toml --workers 1",
    "models",
    "keys",
    "simulate -h",
    "-h",
]


@pytest.mark.parametrize("columns", [60, thorough(80), thorough(120)])
@pytest.mark.parametrize("command", COMMANDS)
def test_an_answer_fits_the_terminal(
    command: str,
    columns: int,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if HLO in command:
        pytest.importorskip("jaxlib", reason="reading HLO needs the extra `xla`")
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, _ = said(command.split(), capsys)
    assert code == 0
    assert max(map(len, out.splitlines())) <= columns


@pytest.mark.parametrize("command", [one for one in COMMANDS if "-h" not in one][:9])
def test_a_narrow_terminal_loses_no_word(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if "pipeline" in command or "--stats" in command or command.startswith("sweep"):
        pytest.skip("a chart has the columns of the terminal, and seconds differ from run to run")
    wide = said(command.split(), capsys)[1]
    monkeypatch.setenv("COLUMNS", "60")
    narrow = said(command.split(), capsys)[1]
    joined = "".join(narrow.split())
    assert not [word for word in wide.split() if word not in joined]


@pytest.mark.thorough
@pytest.mark.usefixtures("undrawn")
def test_files_are_as_wide_as_ever(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said(["simulate", "run.toml", "--out", "wide"], capsys)
    monkeypatch.setenv("COLUMNS", "60")
    said(["simulate", "run.toml", "--out", "narrow"], capsys)
    for file in (folder / "wide").iterdir():
        assert file.read_bytes() == (folder / "narrow" / file.name).read_bytes(), file.name


JSON = {
    "simulate run.toml": "step_time_s",
    "compare run.toml --set plan.remat=full": "parts_s",
    f"replay {HLO}": "step_time_s",
    "sweep sweep.toml --workers 1": "plans",
    "scaling run.toml --chips 8,16": "points",
    "validate runs": "median_abs_error",
}


@pytest.mark.parametrize("command", JSON)
@pytest.mark.parametrize("also", [[], thorough(["--quiet"])])
def test_json_is_all_that_is_printed(
    command: str, also: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, error = said([*command.split(), "--json", *also], capsys)
    assert (code, error) == (0, "")
    assert JSON[command] in json.loads(out)


@pytest.mark.usefixtures("undrawn")
def test_the_json_is_that_of_the_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = said(["simulate", "run.toml", "--json", "--out", "out"], capsys)
    assert out == (folder / "out" / "result.json").read_text("utf-8")


@pytest.mark.thorough
def test_the_plans_of_a_sweep_are_its_rows(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plans = json.loads(said(["sweep", "sweep.toml", "--json", "--workers", "1"], capsys)[1])[
        "plans"
    ]
    assert len(plans) == 30
    one = next(row for row in plans if (row["fsdp"], row["remat"]) == (16, "full"))
    result = json.loads(said(["simulate", "run.toml", "--json"], capsys)[1])
    assert one["step_time_s"] == result["step_time_s"]


@pytest.mark.parametrize("command", JSON)
def test_quiet_says_nothing_but_mistakes(
    command: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said([*command.split(), "--quiet"], capsys) == (0, "", "")
    code, out, error = said([command.split()[0], "none.toml", "-q"], capsys)
    assert (code, out) == (2, "")
    assert error


def test_a_run_is_read_from_stdin(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from_file = said(["simulate", "run.toml"], capsys)[1]
    monkeypatch.setattr(sys, "stdin", io.StringIO(RUN))
    assert said(["simulate", "-"], capsys) == (0, from_file, "")
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    code, _, error = said(["simulate", "-"], capsys)
    assert code == 2
    assert error.startswith("-: the file is empty")


def test_one_command_has_every_key_and_its_words(capsys: pytest.CaptureFixture[str]) -> None:
    out = said(["keys"], capsys)[1]
    rows = dict(line.split(maxsplit=1) for line in out.splitlines() if "." in line.split()[0])
    assert {f"plan.{key}" for key in PLAN_KEYS.table} <= set(rows)
    for key, choices in PLAN_CHOICES.items():
        assert all(word in rows[f"plan.{key}"] for word in choices)
    some = said(["keys", "plan.attention"], capsys)[1].splitlines()[1:]
    assert [line.split()[0] for line in some] == [
        key for key in rows if key.startswith("plan.attention")
    ]


def test_no_such_key(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, error = said(["keys", "plan.rematt"], capsys)
    assert code == 2
    assert "no key of a run file begins with 'plan.rematt'" in error
    assert "plan.remat" in error


def test_the_types_say_what_is_accepted() -> None:
    """Every word of a key's type is taken, and no other; a new field of words is seen here."""
    assert len(PLAN_CHOICES) == 29
    base = Plan(mesh={"fsdp": 4}, global_batch=8)
    for key, choices in PLAN_CHOICES.items():
        for word in choices:
            assert base.replace(**{key: word}).value(key) == word
        with pytest.raises(ts.TpusimError, match=rf"plan\.{key} is 'nothing': valid are "):
            base.replace(**{key: "nothing"})
    assert {*SLOT_SCHEDULES, CIRCULAR, ""} == set(get_args(ScheduleName))


def test_settings_are_completed() -> None:
    assert list(complete_setting("plan.rem")) == ["plan.remat="]
    assert list(complete_setting("plan.remat=")) == [
        f"plan.remat={word}" for word in PLAN_CHOICES["remat"]
    ]
    assert list(complete_setting("plan.remat=m")) == ["plan.remat=minimal"]
    assert complete_chip("v5") == ["v5e", "v5p"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_script(shell: str) -> None:
    made = asked({"_TPUSIM_COMPLETE": f"source_{shell}"})
    assert "_TPUSIM_COMPLETE" in made.stdout


@pytest.mark.thorough
def test_bash_completes_commands_and_settings() -> None:
    def completed(words: str, at: int) -> list[str]:
        given = {"_TPUSIM_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(at)}
        return asked(given).stdout.split()

    assert "simulate" in completed("tpusim si", 1)
    assert "--explain" in completed("tpusim simulate --ex", 2)
    assert completed("tpusim chips v5", 2) == ["v5e", "v5p"]
    assert "plan.lowering=" in completed("tpusim simulate run.toml --set plan.low", 4)


def asked(given: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    code = "from tpusim.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        env={**os.environ, **given},
    )  # fmt: skip


def test_nothing_is_printed_for_an_empty_answer(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["simulate", "run.toml", "-q"]) == 0
    assert capsys.readouterr() == ("", "")
