"""Sweeps on a cluster of real worker processes: the table of one machine, whoever dies."""

import gc
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from commands import SMALL, said
from pandas import read_parquet
from pandas.testing import assert_frame_equal
from search_spaces import MODEL, POD, space

import tpusim as ts
from tpusim.base import TpusimError
from tpusim.sweeps import dask_cluster, sweep

distributed = pytest.importorskip("distributed", reason="needs the extra `cluster`")
psutil = pytest.importorskip("psutil")

ROOT = Path(__file__).parents[3]
BATCHES = [32 * count for count in range(1, 41)]


def dask(folder: Path, *arguments: str, path: Path | None = ROOT) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "3"}
    environment["PYTHONPATH"] = str(path or folder)
    return subprocess.Popen(
        [sys.executable, "-m", "dask", *arguments], cwd=folder, env=environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def worker(folder: Path, address: str, path: Path | None = ROOT) -> subprocess.Popen[bytes]:
    options = ("--nthreads", "1", "--no-nanny", "--no-dashboard", "--local-directory", str(folder))
    return dask(folder, "worker", address, *options, path=path)


@contextmanager
def running(
    folder: Path, workers: int, path: Path | None = ROOT
) -> Iterator[tuple[str, list[subprocess.Popen[bytes]], subprocess.Popen[bytes]]]:
    """The three commands of the user guide: a scheduler and workers on this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"
    scheduler = dask(folder, "scheduler", "--host", "127.0.0.1", "--port", str(port),
                     "--no-dashboard")  # fmt: skip
    started = [worker(folder, address, path) for _ in range(workers)]
    try:
        with distributed.Client(address, timeout=60, set_as_default=False) as client:
            if workers:
                client.wait_for_workers(workers, timeout=60)
        yield address, started, scheduler
    finally:
        for process in (*started, scheduler):
            process.kill()
            process.wait()


@pytest.mark.thorough
def test_a_killed_worker_costs_its_chunk_only(tmp_path: Path) -> None:
    """Of two workers one is killed once a few chunks are done: the same table, no plan missing."""
    given = space(vary={"global_batch": BATCHES})
    alone = sweep(MODEL, given, POD, workers=1)
    assert len(alone) == 600
    seen: list[int] = []
    with running(tmp_path, 2) as (address, workers, _), ts.cluster(address) as executor:

        def kill_one(done: int, total: int) -> None:
            seen.append(done)
            if len(seen) == 4:
                workers[0].send_signal(signal.SIGKILL)
                workers[0].wait()

        table = sweep(MODEL, given, POD, executor=executor, progress=kill_one, out=tmp_path / "out")
        assert workers[0].returncode == -signal.SIGKILL
        assert workers[1].poll() is None
    assert_frame_equal(table, alone)
    assert_frame_equal(read_parquet(tmp_path / "out"), alone)
    assert seen == sorted(set(seen))
    assert len(seen) > 10


@pytest.mark.thorough
def test_a_killed_scheduler_is_a_sentence_and_the_sweep_goes_on_later(tmp_path: Path) -> None:
    given, out, seen = space(vary={"global_batch": BATCHES}), tmp_path / "out", list[int]()
    with running(tmp_path, 1) as (address, _, scheduler):

        def kill_it(done: int, total: int) -> None:
            seen.append(done)
            if len(seen) == 4:
                scheduler.send_signal(signal.SIGKILL)
                scheduler.wait()

        def lost() -> None:
            with ts.cluster(address) as executor:
                sweep(MODEL, given, POD, executor=executor, progress=kill_it, out=out)

        with pytest.raises(TpusimError, match=f"the cluster at {address} is lost; start it and"):
            lost()
    assert 0 < len(read_parquet(out)) < 600
    table = sweep(MODEL, given, POD, workers=1, out=out)
    assert_frame_equal(table, sweep(MODEL, given, POD, workers=1))


@pytest.mark.thorough
def test_the_command_has_the_table_of_one_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(f'{SMALL}[sweep]\naxes = ["fsdp", "tensor"]\n', "utf-8")
    with running(tmp_path, 1) as (address, *_):
        out = tmp_path / "table"
        code, text, error = said(["sweep", str(path), "--cluster", address, "--out", str(out)],
                                 capsys)  # fmt: skip
    assert (code, error) == (0, "")
    alone = said(["sweep", str(path), "--workers", "1"], capsys)[1]
    assert text.splitlines()[1:-2] == alone.splitlines()[1:]
    assert len(read_parquet(out)) == 5


@pytest.mark.thorough
def test_a_cluster_without_workers_is_a_sentence(tmp_path: Path) -> None:
    with (
        running(tmp_path, 0) as (address, *_),
        pytest.raises(TpusimError, match=f"at {address} has no workers; start some with dask"),
        ts.cluster(address),
    ):
        pass


@pytest.mark.thorough
def test_a_worker_of_another_version_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "tpusim").mkdir()
    (tmp_path / "tpusim" / "__init__.py").write_text("", "utf-8")
    with (
        running(tmp_path, 1, path=None) as (address, *_),
        pytest.raises(TpusimError, match=r"1 of 1 workers .* have no tpusim or another version"),
        ts.cluster(address),
    ):
        pass


def test_a_scheduler_that_is_none_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_cluster, "CONNECT_S", 0.3)
    began = time.monotonic()
    for address in ("tcp://127.0.0.1:1", "nowhere", "bogus://x:1"):
        with pytest.raises(TpusimError, match="no Dask scheduler answers at"), ts.cluster(address):
            pass
    assert time.monotonic() - began < 30


def test_a_client_that_does_not_connect_is_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Left to the garbage collector, it may be closed while another one starts: a deadlock."""
    monkeypatch.setattr(dask_cluster, "CONNECT_S", 0.3)
    with pytest.raises(TpusimError) as raised, ts.cluster("nowhere"):
        pass
    assert raised.tb is not None, "its frames keep the client"
    clients = [each for each in gc.get_objects() if type(each) is distributed.Client]
    assert {each.status for each in clients} == {"closed"}


def work_seconds(folder: Path, workers: int) -> float:
    """CPU seconds of the busiest of so many workers over a sweep of 9000 plans."""
    folder.mkdir()
    given = space(vary={"global_batch": [32 * count for count in range(1, 601)]})
    with running(folder, workers) as (address, started), ts.cluster(address) as executor:
        before = [cpu_seconds(each.pid) for each in started]
        assert len(sweep(MODEL, given, POD, executor=executor)) == 9000
        after = [cpu_seconds(each.pid) for each in started]
    return max(end - start for start, end in zip(before, after, strict=True))


def cpu_seconds(pid: int) -> float:
    used = psutil.Process(pid).cpu_times()
    return float(used.user + used.system)


@pytest.mark.thorough
def test_two_workers_are_nearly_twice_as_fast(tmp_path: Path) -> None:
    """In CPU seconds of the busiest worker, as other work on the machine changes the others."""
    one = work_seconds(tmp_path / "one", 1)
    assert one / work_seconds(tmp_path / "two", 2) >= 1.7
