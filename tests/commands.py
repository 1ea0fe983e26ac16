"""What the command line says, and the run that its tests ask about."""

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tpusim.cli.main import run

LONGEST_SENTENCE = 400
"""Characters of a message, without the path of its file."""

SMALL = """
[slice]
chip = "v5e"
topology = "4x4"
[model]
layers = 2
embed = 512
mlp = 2048
heads = 4
vocab = 1000
[plan]
seq_len = 128
global_batch = 32
"""
"""A run file without its mesh."""


def said(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit code, what was printed, and the error, a sentence, without its first word."""
    code = run(arguments)
    out, error = capsys.readouterr()
    assert error == "" or (error.startswith("error: ") and error.count("\n") == 1)
    return code, out, error.removeprefix("error: ")


def compilers(parent: "subprocess.Popen[Any]", temporary: Path) -> list[str]:
    """The process numbers of a command's compilers, once they write in its temporary folder."""
    late = time.monotonic() + 60
    while not list(temporary.glob("*/dump/*")) and time.monotonic() < late:
        time.sleep(0.02)
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
    assert children
    return children
