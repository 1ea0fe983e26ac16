"""Ctrl-C at any moment of a command that compiles or replays: one sentence, and nothing is left."""

import os
import random
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from commands import SMALL
from extent import seeds
from hlo import DATA

START = "import tpusim.__main__ as command; print('up', flush=True); command.start()"
MODULE = """
module @step attributes {mhlo.num_partitions = 8 : i32} {
  func.func public @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
    %0 = stablehlo.dot_general %arg0, %arg0, contracting_dims = [1] x [0] :
        (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    return %0 : tensor<8x8xf32>
  }
}
"""
COMMANDS = {
    "check": ("check", "run.toml", "--out", "made"),
    "compile": ("compile", "step.mlir", "--slice", "v5e:2x4", "--mesh", "data=8", "--out", "a.hlo"),
    "replay": ("replay", str(DATA / "decoder_v5e_2x2_x2.hlo.gz"), "--out", "made"),
}
LONGEST_S = {"check": 7.0, "compile": 5.0, "replay": 2.0}
"""Some more than each takes on a machine with nothing else to do."""
NEEDS = {"check": "libtpu", "compile": "libtpu", "replay": "jaxlib"}
PROMPT_S = 10.0


def left_behind(folder: Path) -> list[str]:
    """The processes whose temporary files would be in the folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"TMPDIR={folder}\0".encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().decode())
        except OSError:
            continue
    return [line for line in found if line]


@pytest.mark.xla
@pytest.mark.parametrize("seed", seeds(20, default=1))
@pytest.mark.parametrize("name", COMMANDS)
def test_an_interrupt_at_any_moment_leaves_nothing(name: str, seed: int, tmp_path: Path) -> None:
    if not find_spec(NEEDS[name]):
        pytest.skip("needs pip install 'tpusim[xla]'")
    work, temporary = tmp_path / "work", tmp_path / "temporary"
    work.mkdir()
    temporary.mkdir()
    (work / "run.toml").write_text(f"{SMALL}mesh = {{ fsdp = 16 }}\n", "utf-8")
    (work / "step.mlir").write_text(MODULE, "utf-8")
    given = sorted(path.name for path in work.iterdir())
    places = {"TMPDIR": str(temporary), "TPUSIM_CACHE": str(tmp_path / "cache")}
    with subprocess.Popen(
        [sys.executable, "-c", START, *COMMANDS[name]],
        cwd=work, env={**os.environ, **places}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as command:  # fmt: skip
        assert command.stdout is not None
        assert command.stdout.readline() == "up\n"
        time.sleep(random.Random(f"{name} {seed}").random() * LONGEST_S[name])
        command.send_signal(signal.SIGINT)
        began = time.monotonic()
        out, error = command.communicate(timeout=60)
    if command.returncode == 0:
        return  # it was faster
    assert time.monotonic() - began < PROMPT_S
    assert (command.returncode, out) == (130, "")
    last = error.splitlines()[-1]
    assert last.startswith("error: interrupted")
    assert "Traceback" not in error
    assert left_behind(temporary) == []
    assert list(temporary.iterdir()) == []
    assert sorted(path.name for path in work.iterdir()) == given
