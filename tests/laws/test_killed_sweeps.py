"""Sweeps whose processes are killed at any moment: nothing is lost, wrong, or left running."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep

import pytest
from commands import SMALL
from extent import seeds

SPACE = """mesh = {data = 4, fsdp = 4}
[sweep]
axes = ["data", "fsdp", "tensor"]
[sweep.vary]
remat = ["none", "full"]
microbatches = [1, 2]
reduce_dtype = ["bf16", "f32"]
seq_len = [128, 256]
"""
MARK = "TPUSIM_TEST_MARK"
"""A variable of the environment, which all processes of a command inherit."""

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes")


def command(run: Path, folder: Path, mark: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*(sys.executable, "-m", "tpusim", "sweep", str(run)),
         *("--out", str(folder), "--workers", "2", "--csv", "--quiet")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, MARK: mark},
    )  # fmt: skip


def alive(mark: str) -> list[int]:
    """The processes that a command started, and itself; what has ended has no environment."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                environment = (process / "environ").read_bytes()
            except OSError:
                continue
            if f"{MARK}={mark}\0".encode() in environment:
                found.append(int(process.name))
    return found


def until(done: Callable[[], bool], seconds: float) -> bool:
    late = monotonic() + seconds
    while not done() and monotonic() < late:
        sleep(0.05)
    return done()


def kill_one(chance: random.Random, running: "subprocess.Popen[str]", mark: str) -> int:
    """Kill the command, or as often one of its workers if it has any. Return its number."""
    workers = [each for each in alive(mark) if each != running.pid]
    victim = chance.choice(workers) if workers and chance.random() < 0.5 else running.pid
    try:
        os.kill(victim, signal.SIGKILL)
    except ProcessLookupError:
        return 0
    return victim


@pytest.fixture(name="run", scope="module")
def _run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sweep") / "run.toml"
    path.write_text(f"{SMALL}{SPACE}")
    return path


@pytest.fixture(name="undisturbed", scope="module")
def _undisturbed(run: Path) -> tuple[str, float]:
    """The table of a sweep that nobody kills, and the seconds that it takes."""
    began = monotonic()
    table, problem = command(run, run.parent / "undisturbed", "undisturbed").communicate()
    assert table.count("\n") > 100, problem
    return table, monotonic() - began


@pytest.mark.parametrize("seed", seeds(34, default=0))
def test_what_is_killed_goes_on_where_it_stopped(
    seed: int, run: Path, undisturbed: tuple[str, float], tmp_path: Path
) -> None:
    """Each is killed three times. A sweep that waits for a worker that is dead would not end.

    A whole sweep takes 18 s of CPU: about ten seconds, in which all have to end, where nothing else
    runs.
    """
    whole, usual = undisturbed
    chance = random.Random(seed)
    for number in range(3):
        mark = f"{os.getpid()}.{seed}.{number}"
        with command(run, tmp_path / "killed", mark) as running:
            sleep(chance.random() * usual)
            victim = kill_one(chance, running, mark)
            out, error = running.communicate(timeout=60 + 4 * usual)
        assert until(lambda mark=mark: not alive(mark), max(10, usual)), "processes are left"
        if running.returncode == 0:
            assert out == whole
        elif victim != running.pid:
            assert (running.returncode, out) == (2, "")
            assert error.startswith("error: ")
            assert "a worker process was ended from outside" in error or "not be started" in error
    with command(run, tmp_path / "killed", "last") as last:
        assert last.communicate() == (whole, "")
