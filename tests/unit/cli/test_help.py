"""The help: arguments by their names, and an example of each command that works."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from commands import run, said

from tpusim.cli.help import EXAMPLES, FIRST_OPTIONS, LAST_OPTIONS
from tpusim.cli.main import app

ROOT = Path(__file__).parents[3]
NEED_THE_COMPILER = ("check", "compile")
MARKS = dict.fromkeys(NEED_THE_COMPILER, pytest.mark.xla) | dict.fromkeys(
    ("advise", "compare", "search", "sweep", "validate"), pytest.mark.thorough
)
NAMES = [info.name or info.callback.__name__ for info in app.registered_commands if info.callback]
COMMANDS = [[name] for name in NAMES] + [["explain", "conv"]]

EXPORTED = """
import jax, jax.numpy as jnp
lowered = jax.jit(lambda x: jnp.tanh(x @ x)).lower(jax.ShapeDtypeStruct((256, 256), jnp.bfloat16))
open("step.mlir", "w").write(lowered.as_text())
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that an example may write into, with what the sources have."""
    for name in ("experiments", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shown_example(page: str) -> list[str]:
    """The words of the command that begins a page of help, as a shell reads them."""
    head, _, rest = page.partition("\n\nUsage: ")
    assert rest
    return shlex.split(head.removeprefix("Example:\n").replace("\\\n", ""))


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_begins_with_an_example_and_names_arguments_plainly(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = said([*command, "--help"], capsys)
    example = EXAMPLES[command[-1]]
    assert code == 0
    assert shown_example(out) == shlex.split(example)
    assert shlex.split(example)[1 : len(command) + 1] == command
    assert not re.search(r"[{}<>]", out)


@pytest.mark.parametrize("group", [[], ["explain"]])
def test_a_group_begins_with_an_example_too(
    group: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = said([*group, "--help"], capsys)
    assert code == 0
    assert shown_example(out) in [shlex.split(example) for example in EXAMPLES.values()]


def test_options_have_one_order_in_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    order = [*FIRST_OPTIONS, *LAST_OPTIONS]
    for command in COMMANDS:
        out = said([*command, "--help"], capsys)[1]
        options = re.findall(r"^  (?:-\w, )?(--[a-z-]+)", out, re.MULTILINE)
        shared = [option for option in options if option in order]
        assert shared == sorted(shared, key=order.index), command
        own = [option for option in options if option not in order]
        middle = len([option for option in shared if option in FIRST_OPTIONS])
        assert options[middle : middle + len(own)] == own, command


def test_a_narrow_terminal_gets_a_command_of_several_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    out = said(["simulate", "--help"], capsys)[1]
    assert max(map(len, out.splitlines())) <= 60
    assert shown_example(out) == shlex.split(EXAMPLES["simulate"])


def test_each_command_has_an_example() -> None:
    assert sorted(EXAMPLES) == sorted(command[-1] for command in COMMANDS)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=MARKS.get(name, [])) for name in EXAMPLES],
)
def test_the_example_works(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if name == "compile":
        subprocess.run([sys.executable, "-c", EXPORTED], cwd=folder, check=True)
    assert run(shlex.split(EXAMPLES[name])[1:]) == 0
    out, error = capsys.readouterr()
    assert out
    assert "error" not in error


@pytest.mark.parametrize(
    "command",
    [name for name in EXAMPLES if name not in ("conv", "input-rate", "chips", "keys", "export")],
)
def test_whatever_prints_json_can_be_quiet(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = said([command, "--help"], capsys)[1]
    assert ("--json" in out) == ("--quiet" in out or command == "models")
