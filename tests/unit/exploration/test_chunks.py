"""The chunks of a sweep: every plan once, in order, one kind in each where there are enough."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from itertools import chain
from pathlib import Path

import pytest
from commands import SMALL
from extent import seeds
from pandas import read_parquet
from pandas.testing import assert_frame_equal
from search_spaces import BASE, POD, space

import tpusim as ts
from tpusim.base.errors import TpusimError
from tpusim.exploration import candidates, sweep
from tpusim.exploration.chunks import (
    LARGEST_CHUNK,
    LEAST_CHUNK,
    TASK_PLANS,
    KindRun,
    SweepOutline,
    chunks_of,
    outline_of,
    tasks_of,
)
from tpusim.exploration.processes import MOST_SUBMITTED, run_chunks
from tpusim.hardware import Slice
from tpusim.runfile import read_sweep

ROOT = Path(__file__).parents[3]


def random_run(rng: random.Random, kind: int, longest: int) -> KindRun:
    """Return a row of plans whose meshes come again, or do not."""
    plans, passes = rng.randint(1, longest), rng.choice([1, 2, 9])
    return KindRun(kind, plans * passes, plans if passes > 1 else 0)


@pytest.mark.parametrize("seed", seeds(200, default=20))
def test_chunks_share_out_all_plans_by_kind(seed: int) -> None:
    rng = random.Random(seed)
    longest = rng.choice([3, 20, 500, 40_000])
    runs = [random_run(rng, kind, longest) for kind in range(rng.randint(1, 30))]
    outline = SweepOutline(kinds=runs)
    sizes = [chunk.plans for chunk in outline.chunks()]
    assert sum(sizes) == outline.plans
    assert 0 < min(sizes) <= max(sizes) <= LARGEST_CHUNK
    kind_of = list(chain.from_iterable([run.kind] * run.plans for run in runs))
    first = 0
    for size in sizes:
        kinds = kind_of[first : first + size]
        # Plans of the first kind in a chunk that has others too are fewer than a chunk needs.
        mixed = [kinds.count(kind) for kind in sorted(set(kinds))]
        assert all(count < LEAST_CHUNK for count in mixed[:-1])
        first += size
    assert len(sizes) <= outline.plans / min(LARGEST_CHUNK, LEAST_CHUNK) + 1


def test_a_chunk_has_one_set_of_rules() -> None:
    """15 meshes of each: batches share a chunk, rules and shapes do not."""
    vary = {"rules": [{}, {"act_embed": "tensor"}], "global_batch": [32, 64]}
    outline = outline_of(space(vary=vary), POD)
    assert [(run.plans, run.forms) for run in outline.kinds] == [(30, 15), (30, 15)]
    assert outline.plans == 60
    assert (list(outline.axes), outline.active) == (["data", "fsdp", "tensor"], set(outline.axes))
    shapes = space(base=ts.Plan(mesh={"fsdp": 256}, seq_len=64, global_batch=256), axes=(),
                   shapes="all")  # fmt: skip
    assert [run.plans for run in outline_of(shapes, Slice("v4", "8x8x4")).kinds] == [1, 1]


def test_chunks_are_the_candidates_in_order() -> None:
    given = space(vary={"remat": ["full", "none"]}, placements="all")
    outline = outline_of(given, POD)
    found = list(chunks_of(given, POD, outline.chunks()))
    assert [number for number, _ in found] == list(range(len(found)))
    plans = [tried.plan for _, chunk in found for tried in chunk]
    assert plans == [tried.plan for tried in candidates(given, POD)]


@pytest.mark.parametrize(
    ("vary", "placements"),
    [
        ({"global_batch": [32, 64, 96], "remat": ["full", "none"]}, "best"),
        ({"remat": ["full", "none"], "global_batch": [32, 64, 96]}, "best"),
        ({"microbatches": [1, 2], "remat": ["full"], "global_batch": [32, 64, 96]}, "all"),
        ({"global_batch": [32 * n for n in range(1, 101)]}, "best"),
        ({"remat": ["full", "none"]}, "best"),
    ],
)
def test_each_mesh_is_simulated_in_one_task(vary: dict[str, list[object]], placements: str) -> None:
    """36 meshes of one graph: those with other batches are in the same task, as far as it goes."""
    pod, axes = Slice("v5e", "8x16"), ("data", "fsdp", "tensor")
    given = ts.Space(base=BASE, axes=axes, vary=vary, placements=placements)
    outline = outline_of(given, pod)
    chunks = outline.chunks()
    tasks = list(tasks_of(chunks_of(given, pod, chunks), chunks, (), together=True))
    numbers = [number for task in tasks for number, _ in task]
    assert sorted(numbers) == list(range(len(chunks)))
    tasks_with: dict[tuple[object, ...], set[int]] = {}
    plans: dict[tuple[object, ...], int] = {}
    for number, task in enumerate(tasks):
        for tried in (tried for _, chunk in task for tried in chunk):
            form = (tried.values.get("remat"), *tried.plan.mesh.values(), str(tried.placement))
            tasks_with.setdefault(form, set()).add(number)
            plans[form] = plans.get(form, 0) + 1
    for form, found in tasks_with.items():
        own = [tasks[number] for number in found]
        whole = [task for task in own if sum(len(chunk) for _, chunk in task) >= TASK_PLANS]
        assert len(own) <= len(whole) + 1, form
    assert len(tasks) >= 4


def test_tasks_leave_out_what_is_known() -> None:
    given = space(vary={"global_batch": [32, 64, 96]})
    chunks = outline_of(given, POD).chunks()
    whole, rest = (
        list(tasks_of(chunks_of(given, POD, chunks), chunks, known, together=True))
        for known in ((), {0, 2})
    )
    assert sorted(n for task in whole for n, _ in task) == list(range(len(chunks)))
    assert sorted(n for task in rest for n, _ in task) == sorted({*range(len(chunks))} - {0, 2})


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


def test_a_sweep_goes_on_after_kill_9(tmp_path: Path) -> None:
    """Killed once it has written some parts; the second run keeps them and makes the rest."""
    batches = [32 * count for count in range(1, 121)]
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
    assert 3 <= len(kept) < 66
    given = read_sweep(path)
    run = given.run
    whole = ts.Space(base=run.plan, **given.tries)
    table = sweep(run.model, whole, run.pod, workers=1, out=out)
    assert {part: part.stat().st_mtime_ns for part in kept} == kept
    assert len(table) == 600
    assert_frame_equal(table, sweep(run.model, whole, run.pod, workers=1))
    assert_frame_equal(read_parquet(out), table)


def test_a_folder_whose_identity_was_half_written_is_new(tmp_path: Path) -> None:
    (tmp_path / "._sweep.json.1.2").write_text('{"sw')
    model = ts.models.Transformer(layers=2, embed=256, mlp=1024, heads=4, vocab=1000)
    assert len(sweep(model, ts.Space(base=BASE), POD, workers=1, out=tmp_path)) == 1
