"""Every command that reads a file refuses what is no regular file, and waits for none."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
import typer
from commands import said

from tpusim.cli.main import app

READING: Mapping[str, tuple[str, ...]] = {
    "compare": ("IT", "IT"),
    "replay": ("IT", "--slice", "v5e:2x2"),
    "compile": ("IT", "--slice", "v5e:2x2"),
    **dict.fromkeys(("simulate", "serve", "advise", "train", "check", "export", "sweep"), ("IT",)),
    **dict.fromkeys(("search", "scaling", "validate", "calibrate", "input-rate"), ("IT",)),
    "diagnose": ("IT",),
}
"""The arguments of each command that reads files."""
OTHERS = ("models", "chips", "keys", "availability")
"""Commands whose arguments are no files."""


def test_all_commands_with_arguments_are_tried() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    named = {
        name
        for name, command in commands.items()
        if any(param.param_type_name == "argument" for param in command.params)
    }
    assert named - set(OTHERS) == READING.keys()


@pytest.mark.parametrize("command", READING)
def test_a_pipe_is_not_waited_for(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if command == "compile":
        pytest.importorskip("libtpu")
    path = tmp_path / "it.toml" if command == "compare" else tmp_path / "it"
    os.mkfifo(path)
    words = [str(path) if word == "IT" else word for word in READING[command]]
    code, out, error = said([command, *words], capsys)
    assert (code, out) == (2, "")
    said_so = (f"{name}: not a regular file; give " for name in (path, path.name))
    assert error.startswith(tuple(said_so))
