"""Random costed programs for the laws of the engine, and what a script prints of them."""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from random import Random

from tpusim.costs import CORE, CostedProgram, Task, TaskLoop, TaskOp
from tpusim.program import Alloc, Dep, Phase

LINKS = (("hbm", 1e12), ("x", 5e10), ("y", 7e10))
STREAMS = ("gather", "scatter", "host")


class Generator:
    """Random programs: nested loops, asynchronous streams, shared links, memory."""

    def __init__(self, seed: int, nesting: float = 0.2) -> None:
        self.nesting = nesting
        self.random = Random(seed)
        self.names = 0
        self.emitted: list[str] = []
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
            if depth < 3 and pick.random() < (0.5 if depth == 0 else self.nesting):
                trips = pick.choice((0, 1, 2, 4, 7) if depth else (8, 11, 15))
                ops.append(
                    TaskLoop(name=self.name(), trips=trips, body=tuple(self.body(depth + 1)))
                )
            ops.append(self.task(name, streams[at], names, at))
            self.emitted.append(name)
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
        # Earlier tasks of enclosing bodies, and of loops that have finished.
        others = [name for name in self.emitted[-6:] if name not in names]
        deps += [Dep(name, pick.randint(0, 2)) for name in others if pick.random() < 0.15]
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


def printed(script: str, hash_seeds: Iterable[str]) -> set[bytes]:
    """What a script prints beside these modules, under each hash seed of Python."""
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    found = set()
    for seed in hash_seeds:
        environ = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths}
        done = subprocess.run(
            [sys.executable, "-c", script], env=environ, capture_output=True, check=True
        )
        found.add(done.stdout)
    return found
