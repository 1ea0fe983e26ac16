"""What the benchmarks measure: each prepares, and returns a function that does the work once.

Seconds are user CPU of this process and of those that it has waited for, so that other work on the
machine counts as little as it can.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import simpy

import tpusim as ts
from tpusim import costs, engine, hardware
from tpusim.exploration.best import SearchResult
from tpusim.exploration.bound import bounds
from tpusim.exploration.bound_groups import GroupAnswers
from tpusim.exploration.search_request import SearchRequest
from tpusim.models import Transformer
from tpusim.pipeline.planned_step import planned_step
from tpusim.plan import Plan
from tpusim.runfile import SimulationRun, read_search

FLAGSHIP = Path(__file__).parents[1] / "bert_480b" / "run.toml"
SEARCH_530B = Path(__file__).parents[1] / "search_530b" / "search.toml"
CHIPS = 2048
STAGES, MICROBATCHES = 16, 64
BATCH = 4096
TIMEOUTS = 200_000

Once: TypeAlias = Callable[[int], int]
"""Does the work of sample n, each with other plans than those before, and returns how much: plans,
events, or 1."""


@dataclass(frozen=True)
class Benchmark:
    """A benchmark: samples are taken in fresh processes, `samples` in each.

    title: what is measured, for the printed table.
    """

    title: str
    prepare: Callable[[], Once]
    processes: int = 1
    samples: int = 5


def command(*arguments: str, times: int = 1) -> Once:
    """Return a benchmark of fresh Python processes, so many for a sample.

    They keep their bytecode, as a user's do: where the environment forbids it, compiling the source
    again adds half of the time.
    """
    given = {name: each for name, each in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def once(_: int) -> int:
        for _ in range(times):
            subprocess.run(
                [sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=given
            )
        return times

    return once


def flagship_warm() -> Once:
    """Return a new plan of a known kind: another batch each time, its placement given."""
    run = ts.read_run(FLAGSHIP)
    (placement,) = hardware.candidates(run.pod, run.plan.mesh)

    def simulate(batch: int) -> None:
        plan = run.plan.replace(global_batch=batch)
        ts.simulate(run.model, plan, run.pod, placement=placement)

    for batch in (BATCH, 2 * BATCH):
        simulate(batch)

    def once(number: int) -> int:
        for at in range(100):
            simulate(BATCH * (3 + 100 * number + at))
        return 100

    return once


def meshes_of(chips: int) -> list[dict[str, int]]:
    """Return all meshes data x fsdp x tensor of so many devices, powers of two."""
    powers = range(chips.bit_length())
    return [
        {"data": 2**data, "fsdp": 2**fsdp, "tensor": chips >> (data + fsdp)}
        for data in powers
        for fsdp in powers
        if data + fsdp < chips.bit_length()
    ]


def simulate_all(run: SimulationRun, plans: Sequence[Plan]) -> int:
    """Simulate plans on placements that are searched for, and return their number."""
    for plan in plans:
        ts.simulate(run.model, plan, run.pod)
    return len(plans)


def free_placements(passes: int) -> Once:
    """Return a pass over the flagship's meshes after `passes` others, each of another batch."""
    run = ts.read_run(FLAGSHIP)

    def once(number: int) -> int:
        batch = BATCH * (number + passes + 1)
        return simulate_all(
            run, [run.plan.replace(mesh=mesh, global_batch=batch) for mesh in meshes_of(CHIPS)]
        )

    for number in range(-passes, 0):
        once(number)
    return once


def given_placements() -> Once:
    """Return a pass over all placements of the flagship's meshes, with another batch each time."""
    run = ts.read_run(FLAGSHIP)
    placed = [
        (mesh, each) for mesh in meshes_of(CHIPS) for each in hardware.placements(run.pod, mesh)
    ]

    def once(number: int) -> int:
        for mesh, placement in placed:
            plan = run.plan.replace(mesh=mesh, global_batch=BATCH * (number + 3))
            ts.simulate(run.model, plan, run.pod, placement=placement)
        return len(placed)

    for number in (-2, -1):
        once(number)
    return once


def pipelined() -> Once:
    """Return plans of 16 stages and 64 microbatches: every fsdp x tensor, another batch."""
    run = ts.read_run(FLAGSHIP)
    base = run.plan.replace(
        mesh={"stage": STAGES, "fsdp": CHIPS // STAGES},
        microbatches=MICROBATCHES,
        schedule="1f1b",
    )
    meshes = [mesh for mesh in meshes_of(CHIPS // STAGES) if mesh["data"] == 1]

    def once(number: int) -> int:
        batch = BATCH * 2 * (number + 2)
        return simulate_all(
            run,
            [base.replace(mesh={"stage": STAGES} | mesh, global_batch=batch) for mesh in meshes],
        )

    once(-1)
    return once


def search_space() -> tuple[SimulationRun, ts.PlanSpace]:
    """Return the flagship's run, and the space that is searched; exchange it here."""
    run = ts.read_run(FLAGSHIP)
    vary = {"microbatches": [1, 2, 4]}
    axes = ("data", "fsdp", "tensor")
    return run, ts.PlanSpace(base=run.plan, slices=[run.pod], axes=axes, vary=vary)


def bounded() -> Once:
    """Return the bounds of all plans of the space of `experiments/search_530b`, with more batches.

    Only plans that divide count, which are a fifth: those of the others are infinite.
    """
    given = read_search(SEARCH_530B)
    keys = {**given.keys["vary"], "microbatches": [1, 2, 4, 8, 16]}
    keys["global_batch"] = [given.plan.global_batch * times for times in (1, 2, 3, 4)]
    space = SearchRequest(**{**given.keys, "vary": keys}).space(given.plan, given.pod)
    blocks = space.blocks

    def once(_: int) -> int:
        answers = GroupAnswers(space.slices)
        found = (bounds(given.model, block, answers).seconds for block in blocks)
        return sum(int(np.isfinite(seconds).sum()) for seconds in found)

    return once


def searched() -> SearchResult:
    """Return the proved best plan of the space."""
    run, space = search_space()
    return ts.search(run.model, space, workers=1)


def whole_search() -> Once:
    """Return the search in a process that has simulated nothing before."""

    def once(_: int) -> int:
        if not searched().proved:
            raise AssertionError("the search ended without a proof")
        return 1

    return once


def search_counts() -> dict[str, int]:
    """Return the plans that the search simulates, and those of its space."""
    found = searched()
    return {"search_simulated": found.simulated, "search_space": found.plans}


def unfolded_512() -> Once:
    """Return a step of two layers on 512 chips, one of them slow, each device a lane."""
    pod = ts.Slice("v4", "8x8x8", slow={"chips": [{"at": [1, 2, 3], "compute": 0.7}]})
    model = Transformer(layers=2, embed=1024, mlp=4096, heads=8, head_dim=128, vocab=32000)
    plan = Plan(mesh={"data": 8, "fsdp": 16, "tensor": 4}, seq_len=2048, global_batch=1024)
    folded = ts.simulate(model, plan, pod)

    def once(_: int) -> int:
        result = ts.simulate(model, plan, pod, placement=folded.placement, fold=False)
        if len(result.timeline.lanes) != 512:
            raise AssertionError("512 devices are not 512 lanes")
        return 1

    return once


def engine_events() -> Once:
    """Return the engine's events of the flagship's step, every iteration run."""
    run = ts.read_run(FLAGSHIP)
    (placement,) = hardware.candidates(run.pod, run.plan.mesh)
    (program,) = planned_step(run.model, run.plan, run.pod).programs_on(placement)
    costed = costs.cost_program(program, run.pod, placement)

    def once(_: int) -> int:
        return sum(engine.run([costed], fold=False).stats.events for _ in range(10))

    return once


def simpy_timeouts() -> Once:
    """Return timeouts of one process of SimPy: what its event loop takes alone."""

    def once(_: int) -> int:
        env = simpy.Environment()

        def wait() -> simpy.events.ProcessGenerator:
            for _ in range(TIMEOUTS):
                yield env.timeout(1)

        env.process(wait())
        env.run()
        return TIMEOUTS

    return once


BENCHMARKS = {
    "import_s": Benchmark(
        "import tpusim in a fresh process", lambda: command("-c", "import tpusim", times=20)
    ),
    "cold_s": Benchmark(
        "tpusim simulate of the flagship, in a fresh process",
        lambda: command("-m", "tpusim", "simulate", str(FLAGSHIP)),
    ),
    "flagship_warm_s": Benchmark("the flagship with another batch, placement given", flagship_warm),
    "plans_per_s": Benchmark(
        "78 meshes of the flagship, free placement: the second pass, with another batch",
        lambda: free_placements(1),
        processes=3,
        samples=1,
    ),
    "plans_per_s_later": Benchmark(
        "the same: later passes, each with another batch",
        lambda: free_placements(3),
        samples=9,
    ),
    "plans_per_s_placements": Benchmark("all placements of these meshes, given", given_placements),
    "plans_per_s_pipelined": Benchmark(
        "16 stages, 64 microbatches (1f1b), other meshes and batches", pipelined, samples=3
    ),
    "bound_plans_per_s": Benchmark(
        "bounds of 256,000 plans of a 530B decoder that divide, as arrays", bounded, samples=3
    ),
    "search_s": Benchmark(
        "the proved best plan of this space, in a fresh process",
        whole_search,
        processes=2,
        samples=1,
    ),
    "unfolded_512_s": Benchmark(
        "two layers on 512 chips, one slow, each device by itself", unfolded_512, samples=3
    ),
    "events_per_s": Benchmark("the engine, the flagship's step unfolded", engine_events),
    "simpy_timeouts_per_s": Benchmark("timeouts of SimPy alone", simpy_timeouts),
}
"""By the name of what is measured: seconds (`_s`), or how many per second (`per_s`)."""
