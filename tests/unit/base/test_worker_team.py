"""Workers: they start together, answer, and are missed at once when they end."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import wait
from pathlib import Path
from time import monotonic, sleep

import pytest

import tpusim
from tpusim.base.worker_team import WorkerEndedError, WorkerTeam

ROOT = Path(tpusim.__file__).parents[1]


@pytest.fixture(name="team")
def _team() -> Iterator[WorkerTeam]:
    team = WorkerTeam(3)
    yield team
    team.shutdown(wait=False, cancel_futures=True)
    began = monotonic()
    team.end()
    assert monotonic() - began < 4, "a worker did not end when it was told to"


def test_each_worker_is_a_process_of_its_own(team: WorkerTeam) -> None:
    wait([team.submit(sleep, 0.2) for _ in range(3)])
    found = {team.submit(os.getpid).result() for _ in range(30)}
    assert len(found) == 3
    assert os.getpid() not in found


def test_large_answers_and_defects_arrive(team: WorkerTeam) -> None:
    assert team.submit(bytes, 10**7).result() == bytes(10**7)
    with pytest.raises(ZeroDivisionError) as raised:
        team.submit(divmod, 1, 0).result()
    assert "in _answer" in raised.value.__notes__[0]
    assert team.submit(abs, -1).result() == 1


@pytest.mark.parametrize("first", [True, False])
def test_a_worker_that_is_killed_is_missed_at_once(first: bool, team: WorkerTeam) -> None:
    """Also while others work on, and whether or not they were forked from it."""
    workers = sorted({team.submit(os.getpid).result() for _ in range(9)})
    running = [team.submit(sleep, 60) for _ in range(3)]
    sleep(0.2)
    os.kill(workers[0 if first else -1], signal.SIGKILL)
    (lost,), others = wait(running, timeout=5, return_when="FIRST_COMPLETED")
    assert isinstance(lost.exception(), WorkerEndedError)
    assert len(others) == 2


def test_workers_end_with_their_parent_in_the_middle_of_their_work(tmp_path: Path) -> None:
    script = (
        "import os, time\n"
        "from tpusim.base.worker_team import WorkerTeam\n"
        "team = WorkerTeam(3)\n"
        "calls = [team.submit(time.sleep, 0.3) for _ in range(3)]\n"
        "for call in calls: call.result()\n"
        "print(*{team.submit(os.getpid).result() for _ in range(30)}, flush=True)\n"
        "calls = [team.submit(time.sleep, 60) for _ in range(3)]\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as parent:  # fmt: skip
        assert parent.stdout is not None
        workers = parent.stdout.readline().split()
        assert len(workers) == 3
        parent.kill()
    late = monotonic() + 5
    while (left := [each for each in workers if is_running(each)]) and monotonic() < late:
        sleep(0.02)
    assert left == []


def is_running(process: str) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
