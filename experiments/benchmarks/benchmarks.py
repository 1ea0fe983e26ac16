"""What the benchmarks measure: each prepares, and returns a function that does the work once.

First visits come first, as most users make no other: a command in a fresh process, or plans of
which the process has simulated none.

Seconds are user CPU of this process and of those that it has waited for, so that other work on the
machine counts as little as it can.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import numpy as np
import simpy
from large_hlo import large_text

import tpusim as ts
from tpusim import costs, engine, hardware
from tpusim.bounds.groups import GroupAnswers
from tpusim.bounds.plan_bounds import bounds
from tpusim.models import Transformer
from tpusim.pipeline.planned_step import planned_step
from tpusim.plan import Plan
from tpusim.runfile import SimulationRun
from tpusim.searches.best import SearchResult
from tpusim.simulation import plan_run
from tpusim.simulation.known_steps import KnownSteps

EXPERIMENTS = Path(__file__).parents[1]
FLAGSHIP = EXPERIMENTS / "bert_480b" / "run.toml"
MESH_SHAPES = EXPERIMENTS / "mesh_shapes" / "sweep.toml"
SEARCH_530B = EXPERIMENTS / "search_530b" / "search.toml"
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


def sweep_command() -> Once:
    """Return `tpusim sweep` of all placements of the 480B encoder's meshes, into a new folder."""

    def once(number: int) -> int:
        with TemporaryDirectory() as folder:
            out = str(Path(folder) / str(number))
            return command("-m", "tpusim", "sweep", str(MESH_SHAPES), "--out", out)(number)

    return once


def report_command() -> Once:
    """Return `tpusim simulate` of the 480B encoder with its report, into a new folder."""

    def once(number: int) -> int:
        with TemporaryDirectory() as folder:
            return command("-m", "tpusim", "simulate", str(FLAGSHIP), "--out", folder)(number)

    return once


def replay_command() -> Once:
    """Return `tpusim replay` of a file of 10 MB, with the process that parses it."""
    text = large_text(10e6)

    def once(number: int) -> int:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "large.hlo"
            path.write_text(text)
            return command("-m", "tpusim", "replay", str(path), "--slice", "v5e:2x2")(number)

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
        for at in range(20):
            simulate(BATCH * (3 + 20 * number + at))
        return 20

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


def loaded() -> SimulationRun:
    """Return the 480B encoder's run, with all modules loaded and nothing known of other plans."""
    run = ts.read_run(FLAGSHIP)
    ts.simulate(run.model, run.plan.replace(seq_len=384, global_batch=2048), run.pod)
    return run


def free_placements(passes: int) -> Once:
    """Return a pass over the 480B encoder's meshes after `passes` others, each of another batch."""
    run = loaded()

    def once(number: int) -> int:
        batch = BATCH * (number + passes + 1)
        return simulate_all(
            run, [run.plan.replace(mesh=mesh, global_batch=batch) for mesh in meshes_of(CHIPS)]
        )

    for number in range(-passes, 0):
        once(number)
    return once


def first_meshes() -> Once:
    """Return the first pass over the 480B encoder's meshes, as one unit."""
    once = free_placements(0)
    return lambda number: min(1, once(number))


def first_plans() -> Once:
    """Return the first visit to 576 plans of a 13B model on v5e-256, as one unit.

    8 meshes, 6 policies of rematerialisation, 1 to 8 microbatches and 3 batches.
    """
    loaded()
    model, pod = ts.models.load("llama2-13b"), ts.Slice("v5e", "16x16")
    shapes = ((1, 256), (1, 128), (1, 64), (2, 128), (2, 64), (4, 64), (4, 16), (8, 32))
    meshes = [{"data": d, "fsdp": f, "tensor": 256 // (d * f)} for d, f in shapes]
    policies: list[dict[str, object]] = [{"remat": each} for each in ("full", "minimal", "none")]
    policies += [{"save": ["context", *more]} for more in ([], ["q"], ["q", "k", "v"])]

    def once(_: int) -> int:
        for mesh, saved, microbatches, batch in product(
            meshes, policies, (1, 2, 4, 8), (2048, 4096, 8192)
        ):
            plan = ts.Plan(
                mesh=mesh, seq_len=2048, global_batch=batch, microbatches=microbatches, **saved
            )
            ts.simulate(model, plan, pod)
        return 1

    return once


def given_placements() -> Once:
    """Return a pass over all placements of these meshes, with another batch each time."""
    run = ts.read_run(FLAGSHIP)
    placed = [
        (mesh, each) for mesh in meshes_of(CHIPS) for each in hardware.placements(run.pod, mesh)
    ]

    def once(number: int) -> int:
        for mesh, placement in placed:
            plan = run.plan.replace(mesh=mesh, global_batch=BATCH * (number + 3))
            ts.simulate(run.model, plan, run.pod, placement=placement)
        return len(placed)

    once(-1)
    return once


def first_pipelines() -> Once:
    """Return plans of 16 stages and 64 microbatches: every fsdp x tensor, none of them known."""
    run = loaded()
    base = run.plan.replace(
        mesh={"stage": STAGES, "fsdp": CHIPS // STAGES},
        microbatches=MICROBATCHES,
        schedule="1f1b",
    )
    meshes = [mesh for mesh in meshes_of(CHIPS // STAGES) if mesh["data"] == 1]

    def once(number: int) -> int:
        batch = BATCH * 2 * (number + 1)
        return simulate_all(
            run,
            [base.replace(mesh={"stage": STAGES} | mesh, global_batch=batch) for mesh in meshes],
        )

    return once


def search_space() -> tuple[SimulationRun, ts.PlanSpace]:
    """Return the 480B encoder's run, and the space that is searched; exchange it here."""
    run = ts.read_run(FLAGSHIP)
    vary = {"microbatches": [1, 2, 4]}
    axes = ("data", "fsdp", "tensor")
    return run, ts.PlanSpace(base=run.plan, slices=[run.pod], axes=axes, vary=vary)


def bounded() -> Once:
    """Return the bounds of all plans of the space of `experiments/search_530b`, with more batches.

    Only plans that divide count, which are a fifth: those of the others are infinite.
    """
    given = ts.read_run(SEARCH_530B)
    assert given.search is not None
    keys = {**given.search.space.vary, "microbatches": [1, 2, 4, 8, 16]}
    keys["global_batch"] = [given.plan.global_batch * times for times in (1, 2, 3, 4)]
    space = replace(given.search.space, vary=keys, model=None)
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


def warm_on(shape: str, slices: int) -> Once:
    """Return new plans of a known kind on slices of v5e: another batch each, placement given."""
    pod = ts.Slice("v5e", shape, slices)
    model = Transformer(layers=16, embed=4096, mlp=16384, heads=32, vocab=32000)
    mesh = {"fsdp": pod.topology.chips, "dcn_data": pod.num_slices}
    placement = next(iter(hardware.candidates(pod, mesh)))

    def simulate(times: int) -> None:
        plan = Plan(mesh=mesh, seq_len=2048, global_batch=pod.devices * times)
        ts.simulate(model, plan, pod, placement=placement)

    for times in (1, 2, 3):
        simulate(times)

    def once(number: int) -> int:
        for at in range(15):
            simulate(4 + 15 * number + at)
        return 15

    return once


def lowered_anew(slow: dict[str, object] | None) -> Once:
    """Return the 480B encoder on a slice with slow parts or without, as if it had not been seen."""
    run = ts.read_run(FLAGSHIP)
    pod = ts.Slice("v4", "8x16x16", slow=slow)

    def once(_: int) -> int:
        plan_run.KNOWN_STEPS = KnownSteps()
        ts.simulate(run.model, run.plan, pod)
        return 1

    once(-1)
    return once


def ranges() -> Once:
    """Return ranges of a prediction."""
    run = ts.read_run(FLAGSHIP)
    result = ts.simulate(run.model, run.plan, run.pod)

    def once(_: int) -> int:
        for _ in range(1000):
            if result.error_range is None:
                raise AssertionError("the 480B encoder has no range")
        return 1000

    return once


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
    """Return the engine's events of the 480B encoder's step, every iteration run."""
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
    "sweep_first_visit_s": Benchmark(
        "tpusim sweep of 828 placements of the 480B encoder's meshes, with its table",
        sweep_command,
        samples=3,
    ),
    "meshes_first_visit_s": Benchmark(
        "78 meshes of the 480B encoder, free placement: the first pass of a process",
        first_meshes,
        processes=3,
        samples=1,
    ),
    "plans_first_visit_s": Benchmark(
        "576 plans of a 13B model on v5e-256: the first pass of a process",
        first_plans,
        processes=2,
        samples=1,
    ),
    "pipelines_first_visit_s": Benchmark(
        "a plan of 16 stages and 64 microbatches (1f1b), first visit",
        first_pipelines,
        processes=3,
        samples=1,
    ),
    "search_530b_s": Benchmark(
        "tpusim search of experiments/search_530b, all its processes",
        lambda: command("-m", "tpusim", "search", str(SEARCH_530B)),
        samples=3,
    ),
    "search_s": Benchmark(
        "the proved best plan of the 480B encoder's space, in a fresh process",
        whole_search,
        processes=2,
        samples=1,
    ),
    "cold_s": Benchmark(
        "tpusim simulate of the 480B encoder, in a fresh process",
        lambda: command("-m", "tpusim", "simulate", str(FLAGSHIP)),
    ),
    "report_s": Benchmark(
        "tpusim simulate of the 480B encoder with its report, in a fresh process",
        report_command,
        samples=3,
    ),
    "replay_10mb_s": Benchmark(
        "tpusim replay of 10 MB of HLO, in a fresh process", replay_command, samples=3
    ),
    "import_s": Benchmark(
        "import tpusim in a fresh process", lambda: command("-c", "import tpusim", times=20)
    ),
    "bound_plans_per_s": Benchmark(
        "bounds of 256,000 plans of a 530B decoder that divide, as arrays", bounded, samples=3
    ),
    "unfolded_512_s": Benchmark(
        "two layers on 512 chips, one slow, each device by itself", unfolded_512, samples=3
    ),
    "events_per_s": Benchmark("the engine, the 480B encoder's step unfolded", engine_events),
    "simpy_timeouts_per_s": Benchmark("timeouts of SimPy alone", simpy_timeouts),
    "flagship_warm_s": Benchmark(
        "later visits: the 480B encoder with another batch, placement given", flagship_warm
    ),
    "few_chips_warm_s": Benchmark(
        "later visits: 16 layers on 64 chips, placement given", lambda: warm_on("4x4", 4)
    ),
    "many_chips_warm_s": Benchmark(
        "later visits: the same layers on 102,400 chips", lambda: warm_on("16x16", 400)
    ),
    "healthy_2048_s": Benchmark(
        "the 480B encoder as if it had not been seen", lambda: lowered_anew(None)
    ),
    "slow_chip_2048_s": Benchmark(
        "the same with a slow chip",
        lambda: lowered_anew({"chips": [{"at": [0, 0, 0], "compute": 0.8}]}),
    ),
    "range_s": Benchmark("the range of a prediction", ranges),
    "plans_per_s": Benchmark(
        "later visits: the 78 meshes, free placement, with another batch",
        lambda: free_placements(1),
        samples=3,
    ),
    "plans_per_s_placements": Benchmark(
        "later visits: all placements of these meshes, given", given_placements, samples=3
    ),
}
"""By the name of what is measured: seconds (`_s`), or how many per second (`per_s`)."""

AT_MOST = {
    "many_chips_warm_s": ("few_chips_warm_s", 1.3),
    "slow_chip_2048_s": ("healthy_2048_s", 5.0),
}
"""Benchmarks that take at most so many times the seconds of another, on any machine."""
