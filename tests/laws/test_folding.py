"""Folding in time changes nothing: a folded run is the unfolded one, to the picosecond."""

from collections import Counter
from functools import cache
from random import Random

import pytest

from tpusim.costs.tasks import CORE, CostedProgram, Task, TaskLoop, TaskOp
from tpusim.engine import Record, Timeline, run
from tpusim.program import Alloc, Dep, Phase

SEEDS = range(200)
LINKS = (("hbm", 1e12), ("x", 5e10), ("y", 7e10))
STREAMS = ("gather", "scatter", "host")


class Generator:
    """Random programs: nested loops, asynchronous streams, shared links, memory."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.names = 0
        # Small integers make ties and long periods likely; odd ones make them rare.
        self.grain = self.random.choice((1e-6, 1e-6, 1.37e-7))

    def program(self) -> CostedProgram:
        body = self.body(0)
        return CostedProgram(
            name="random",
            body=tuple(body),
            links=LINKS,
            resident=(Alloc("weights", 1000, "parameters"),),
        )

    def name(self) -> str:
        self.names += 1
        return f"op{self.names}"

    def body(self, depth: int) -> list[TaskOp]:
        pick = self.random
        ops: list[TaskOp] = []
        names = [self.name() for _ in range(pick.randint(2, 5))]
        streams = [pick.choice((CORE, CORE, *STREAMS)) for _ in names]
        for at, name in enumerate(names):
            if depth < 3 and pick.random() < (0.5 if depth == 0 else 0.2):
                trips = pick.choice((0, 1, 2, 5, 9) if depth else (8, 13, 20))
                ops.append(
                    TaskLoop(name=self.name(), trips=trips, body=tuple(self.body(depth + 1)))
                )
            ops.append(self.task(name, streams[at], names, at))
        return ops

    def task(self, name: str, stream: str, names: list[str], at: int) -> Task:
        pick = self.random
        uses = tuple((link, pick.randint(1, 3)) for link, _ in LINKS if pick.random() < 0.5)
        allocs, frees = self.memory(name)
        return Task(
            name=name,
            phase=Phase.FORWARD,
            label=pick.choice(("matmul", "vector", "fsdp")),
            stream=stream,
            delay_s=pick.choice((0, 0, 1, 2, 3)) * self.grain,
            work_s=pick.choice((0, 1, 2, 5, 8)) * self.grain,
            bytes=pick.choice((0, 1e4, 1e5, 3e5)) if uses else 0.0,
            uses=uses,
            deps=tuple(self.deps(names, at)),
            allocs=allocs,
            frees=frees,
        )

    def deps(self, names: list[str], at: int) -> list[Dep]:
        pick = self.random
        deps = []
        for other, name in enumerate(names):
            if pick.random() < 0.35:
                distance = pick.randint(0, 3) if other < at else pick.randint(1, 3)
                deps.append(Dep(name, distance))
        return deps

    def memory(self, name: str) -> tuple[tuple[Alloc, ...], tuple[str, ...]]:
        kind = self.random.choice(("none", "scratch", "kept", "both"))
        scratch = Alloc(f"{name}.scratch", self.random.randint(1, 90), "temporaries")
        kept = Alloc(f"{name}.kept", self.random.randint(1, 9), "activations")
        if kind == "scratch":
            return (scratch,), (scratch.tensor,)
        if kind == "kept":
            return (kept,), ()
        return ((scratch, kept), (scratch.tensor,)) if kind == "both" else ((), ())


@cache
def both(seed: int) -> tuple[Timeline, Timeline]:
    program = Generator(seed).program()
    return run([program]), run([program], fold=False)


def expanded(records: tuple[Record, ...]) -> Counter[tuple[str, str, int, int]]:
    """Every single run of every task: name, label, start and duration."""
    return Counter(
        (record.name, record.label, start, record.duration_ps)
        for record in records
        for start in record.starts()
    )


def levels(timeline: Timeline) -> list[tuple[int, int]]:
    """Every change of memory, with its time, in order of time."""
    return sorted(
        (start, change.bytes)
        for change in timeline.memory[0].changes
        for start in Record(
            0, "", "", Phase.FORWARD, "", change.time_ps, change.time_ps, change.repeats
        ).starts()
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_folded_is_unfolded(seed: int) -> None:
    folded, unfolded = both(seed)
    assert folded.total_ps == unfolded.total_ps
    assert folded.links == unfolded.links
    assert expanded(folded.tasks) == expanded(unfolded.tasks)
    assert expanded(folded.waits) == expanded(unfolded.waits)
    assert folded.memory[0][:3] == unfolded.memory[0][:3]
    assert levels(folded) == levels(unfolded)


def test_periods_of_several_trips_occur() -> None:
    folds = [fold for seed in SEEDS for fold in both(seed)[0].stats.folds]
    assert max(fold.trips for fold in folds) > 1
    assert sum(fold.trips > 1 for fold in folds) > 5


def test_most_trips_are_folded() -> None:
    made = sum(both(seed)[0].stats.trips_simulated for seed in SEEDS)
    asked = sum(both(seed)[0].stats.trips for seed in SEEDS)
    assert made < asked / 3


def test_the_core_is_always_accounted_for() -> None:
    for seed in SEEDS:
        timeline = both(seed)[1]
        core = [record for record in timeline.tasks if record.stream == CORE]
        spans = sorted((each.start_ps, each.end_ps) for each in (*core, *timeline.waits))
        ends = [0, *(end for _, end in spans)]
        assert [start for start, _ in spans] == ends[:-1]
        assert ends[-1] == timeline.total_ps
