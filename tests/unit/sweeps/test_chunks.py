"""The chunks of a sweep: every plan once, in order, as many as a process does in a while."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from itertools import pairwise
from pathlib import Path

import pytest
from commands import SMALL
from extent import seeds
from many_plans import MOST_SUBMITTED, run_chunks
from pandas import read_parquet
from pandas.testing import assert_frame_equal
from search_spaces import BASE, POD, space

import tpusim as ts
from tpusim.base import TpusimError
from tpusim.hardware import Slice
from tpusim.runfile import read_run
from tpusim.sweeps import candidates, sweep
from tpusim.sweeps.chunks import (
    CHUNK_S,
    LARGEST_CHUNK,
    LEAST_CHUNK,
    Pace,
    chunks_of,
    outline_of,
)

ROOT = Path(__file__).parents[3]


def cut(pod: Slice, given: ts.Space, known: dict[int, int], pace: Pace) -> list[tuple[int, int]]:
    """The first plan and the number of plans of each chunk, whose plans are those of the space."""
    tried = list(candidates(given, pod))
    found = list(chunks_of(candidates(given, pod), len(tried), known, pace))
    for first, chunk in found:
        assert list(chunk) == tried[first : first + len(chunk)]
    return [(first, len(chunk)) for first, chunk in found]


@pytest.mark.parametrize("seed", seeds(200, default=20))
def test_every_plan_is_known_or_in_one_chunk(seed: int) -> None:
    rng = random.Random(seed)
    given = space(vary={"global_batch": [32 * count for count in range(1, 9)]})
    plans = outline_of(given, POD).plans
    ends = sorted(rng.sample(range(plans + 1), 2 * rng.randint(0, 6)))
    known = {first: end - first for first, end in zip(ends[::2], ends[1::2], strict=True)}
    pace = Pace()
    pace.add(1, rng.choice([0.0, 1e-3, 0.02, 10.0]))
    found = cut(POD, given, known, pace)
    rows = sorted([*found, *known.items()])
    assert sum(count for _, count in rows) == plans == 120
    assert all(first + count == second for (first, count), (second, _) in pairwise(rows))
    assert all(0 < count <= pace.chunk for _, count in found)


def test_chunks_take_the_same_time() -> None:
    """The first ones are small; then they are as large as their plans are fast, within limits."""
    pace = Pace()
    assert pace.chunk == LEAST_CHUNK
    pace.add(8, 0.0)
    assert pace.chunk == 2 * LEAST_CHUNK
    for plan_s in (CHUNK_S / 100, 0.0, 1e3):
        for _ in range(9):
            pace.add(10, 10 * plan_s)
        assert pace.chunk == {0.0: LARGEST_CHUNK, 1e3: LEAST_CHUNK}.get(plan_s, 100)


def test_processes_start_for_work_that_is_worth_it() -> None:
    """Of a thousand plans in 5 ms each, this process does all."""
    pace = Pace()
    assert pace.is_short(10**6)
    pace.add(8, 0.24)
    assert pace.is_short(10**6), "the first plans take longer"
    pace.add(400, 1.8)
    assert pace.is_short(600)
    assert not pace.is_short(1000)


def test_an_outline_has_the_axes_of_all_plans() -> None:
    outline = outline_of(space(vary={"global_batch": [32, 64]}), POD)
    assert outline.plans == 30
    assert (list(outline.axes), outline.active) == (["data", "fsdp", "tensor"], set(outline.axes))
    shapes = space(base=ts.Plan(mesh={"fsdp": 256, "data": 1}, seq_len=64, global_batch=256),
                   axes=(), shapes="all")  # fmt: skip
    outline = outline_of(shapes, Slice("v4", "8x8x4"))
    assert (outline.plans, list(outline.axes), outline.active) == (2, ["fsdp", "data"], {"fsdp"})


class Lazy(Executor):
    """Runs a task when its result is asked for, and counts those that wait."""

    def __init__(self) -> None:
        self.most = 0
        self.waiting: list[Future[int]] = []

    def submit(self, function, /, *given):  # type: ignore[no-untyped-def]
        future: Future[int] = Future()
        self.waiting.append(future)
        self.most = max(self.most, len(self.waiting))
        if len(self.waiting) == MOST_SUBMITTED or given[0] >= 2 * MOST_SUBMITTED - 1:
            for each in self.waiting:
                each.set_result(0)
            self.waiting.clear()
        return future


def test_chunks_are_made_when_they_are_due() -> None:
    executor = Lazy()
    made = 0

    def work() -> Iterator[tuple[int, int]]:
        nonlocal made
        for number in range(2 * MOST_SUBMITTED):
            made += 1
            yield number, number

    chunks = run_chunks(abs, work(), 1, executor)
    next(chunks)
    assert made == MOST_SUBMITTED
    assert sorted([chunk for _, chunk, _ in chunks]) != []
    assert (made, executor.most) == (2 * MOST_SUBMITTED, MOST_SUBMITTED)


def test_a_process_of_this_machine_that_is_killed_is_a_sentence() -> None:
    with pytest.raises(TpusimError, match="a worker process was ended from outside"):
        list(run_chunks(os._exit, [(0, 1), (1, 1)], 2))


@pytest.mark.thorough
def test_a_sweep_goes_on_after_kill_9(tmp_path: Path) -> None:
    """Killed once it has written some parts; the second run keeps them and makes the rest."""
    batches = [32 * count for count in range(1, 81)]
    text = f'{SMALL}[sweep]\naxes = ["fsdp", "tensor"]\n[sweep.vary]\nglobal_batch = {batches}\n'
    path, out = tmp_path / "sweep.toml", tmp_path / "out"
    path.write_text(text, "utf-8")
    command = [sys.executable, "-m", "tpusim", "sweep", str(path), "--out", str(out)]
    first = subprocess.Popen([*command, "--workers", "2"], cwd=ROOT, stdout=subprocess.DEVNULL)
    late = time.monotonic() + 60
    while len(list(out.glob("part-*"))) < 3 and time.monotonic() < late:
        time.sleep(0.005)
    first.send_signal(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    time.sleep(0.2)
    kept = {part: part.stat().st_mtime_ns for part in out.glob("part-*")}
    assert len(kept) >= 3
    run = read_run(path)
    whole = run.sweep
    table = sweep(run.model, whole, run.pod, workers=1, out=out)
    assert {part: part.stat().st_mtime_ns for part in kept} == kept
    assert len(list(out.glob("part-*"))) > len(kept)
    assert len(table) == 400
    assert_frame_equal(table, sweep(run.model, whole, run.pod, workers=1))
    assert_frame_equal(read_parquet(out), table)


def test_a_folder_whose_identity_was_half_written_is_new(tmp_path: Path) -> None:
    (tmp_path / "._sweep.json.1.2").write_text('{"sw')
    model = ts.models.Transformer(layers=2, embed=256, mlp=1024, heads=4, vocab=1000)
    assert len(sweep(model, ts.Space(base=BASE), POD, workers=1, out=tmp_path)) == 1
