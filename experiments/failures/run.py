"""Published numbers of goodput and failures beside what tpusim says.

python experiments/failures/run.py [--out DIR]

`--out` writes the figure of a run's life, of `ironwood_405b.toml`, in a minute more.
"""

from argparse import ArgumentParser
from collections.abc import Iterator
from functools import cache
from itertools import product
from math import exp, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import tpusim as ts
from tpusim.failures import Failures, mean_time_to_failure, units_of
from tpusim.training import Checkpoints, TrainingResult, TrainingRun, run_setup, train_step
from tpusim.training.expected_run import expected_ettr, restart_seconds

DAY = 86400.0
NODE = ts.Slice("v5e", "2x4")
MODEL = ts.models.Transformer(layers=2, embed=512, mlp=2048, heads=4, vocab=1024)
QUIET: dict[str, Any] = {"cable": 0, "switch": 0, "job": 0}
"""Causes that a source does not have."""

AT_ONCE: dict[str, Any] = {
    "initialization_s": 0.0, "compile_s": 0.0, "warm_up_s": 0.0, "step_time_s": 1.0,
}  # fmt: skip
"""A run that starts at once, with steps of a second."""


class Point(NamedTuple):
    """A published number, and what tpusim says: a value, or a span over what is not published."""

    name: str
    published: float
    low: float
    high: float
    unit: str = ""

    def __str__(self) -> str:
        form = "{:.1%}" if self.unit == "%" else "{:.3g} " + self.unit
        ends = [form.format(each).strip() for each in (self.low, self.high)]
        found = ends[0] if self.low == self.high else " to ".join(ends)
        return f"| {self.name} | {form.format(self.published).strip()} | {found} |"


def value(name: str, published: float, found: float, unit: str = "") -> Point:
    """Return a point without a span."""
    return Point(name, published, found, found, unit)


def mean_times() -> Iterator[Point]:
    """Yield mean times to failure at RSC-1's 6.5 failures per 1,000 nodes and day."""
    causes = Failures(causes=QUIET | {"machine": 6.5e-3}).all_causes
    for chips, published in ((16_384, 1.8), (131_072, 0.23)):
        units = units_of(ts.Slice("v5e", "16x16", chips // 256))
        hours = (mean_time_to_failure(causes, units) or 0) / 3600
        yield value(f"MTTF, {chips:,} accelerators, scaled", published, hours, "h")
    per_day = 24 / 7.9 - 128 * 6.5e-3
    with_job = Failures(causes=QUIET | {"machine": 6.5e-3, "job": per_day}).all_causes
    units = units_of(ts.Slice("v5e", "16x16", 4))
    hours = (mean_time_to_failure(with_job, units) or 0) / 3600
    yield value(f"MTTF, 1,024, with {per_day:.2f} failures per job and day", 7.9, hours, "h")


def ettr_runs() -> Iterator[Point]:
    """Yield the effective training time ratios of Kokolis et al. by random runs.

    What they print is rounded or a bound, so the formula of the same authors stands beside it.
    """
    rows = (
        ("2,048, each hour (printed: above 90 %)", 256, 6.5, 3600.0, 300.0, 0.0),
        ("4,096, each hour (above 90 %)", 512, 6.5, 3600.0, 300.0, 0.0),
        ("16,384, each 5 min (93 %)", 2048, 6.5, 300.0, 300.0, 0.0),
        ("12,000, writes of 10 s, best interval (90 %)", 1500, 6.5, None, 300.0, 10.0),
        ("100,000, RSC-2, each 2 min, restart 2 min (90 %)", 12500, 2.34, 120.0, 120.0, 0.0),
    )
    for name, nodes, per_thousand, interval, restart, write in rows:
        per_day = nodes * per_thousand / 1000
        every = interval or best_interval(write, DAY / per_day)
        form = expected_ettr(per_day / DAY, restart, every, write)
        yield value(f"ETTR, {name}", form, ettr(per_day, restart, every, write), "%")


def best_interval(stop: float, mttf: float) -> float:
    """Return the useful seconds between checkpoints that make a long run shortest.

    It is where `1 - x = exp(-x - stop / mttf)`, with x the interval over `mttf`. Solved by Newton's
    method.
    """
    share = stop / mttf
    x = min(sqrt(2 * share), 1.0)
    for _ in range(60):
        power = exp(-x - share)
        x -= (1 - x - power) / (power - 1)
    return x * mttf


def ettr(per_day: float, restart: float, interval: float, write: float) -> float:
    """Return useful over wall time of random runs on a machine that fails so often a day."""
    cause = {"per_day": per_day, "detection_s": 0, "hang_share": 0, "repair_s": 0}
    run = TrainingRun(
        steps=200_000,
        **AT_ONCE,
        checkpoints=Checkpoints(every=round(interval), mode="blocking", time_s=write),
        failures=Failures(
            runs=100, restart_s=restart, replace_s=0, restore_s=0, causes=QUIET | {"machine": cause}
        ),
    )
    return train_step(small_step(NODE), run).goodput


@cache
def small_step(pod: ts.Slice) -> ts.PlanResult:
    """Return a step whose time each run gives itself."""
    mesh = {"dcn_data": pod.num_slices, "data": pod.devices // pod.num_slices}
    plan = ts.Plan(mesh=mesh, seq_len=128, global_batch=pod.devices)
    return ts.simulate(MODEL, plan, pod)


def gemini() -> Iterator[Point]:
    """Yield the goodput of Gemini 1.0 and 2.5, over what is not published.

    Ultra: 2 to 4 slices of 4,096 v4 chips; 30 to 60 min between checkpoints of the storage and 15
    to 30 min until the run goes on, or copies in memory each 1 to 5 min and 3 to 10 min.
    2.5: four slices of 8,960 v5p chips, interrupted 2 to 4 times an hour, for 25 to 60 s each.
    """
    plain = [
        long_run("v4", "16x16x16", slices, restart * 60, {"every": every * 60})
        for slices, restart, every in product((2, 4), (15, 30), (30, 60))
    ]
    yield span("Gemini 1.0 Ultra, checkpoints", 0.85, plain)
    copies = [
        long_run(
            "v4", "16x16x16", slices, restart * 60, {"every": 3600, "memory_every": every * 60}
        )
        for slices, restart, every in product((2, 4), (3, 10), (1, 5))
    ]
    yield span("Gemini 1.0 Ultra, copies in memory", 0.97, copies)
    elastic = [
        long_run(
            "v5p", "16x20x28", 4, 0, {"every": 600, "memory_every": every},
            elastic=True, reshard_s=loss,
            causes={"job": {"per_day": hourly * 24, "detection_s": 13, "hang_share": 0}},
        )
        for loss, hourly, every in product((10, 45), (2, 4), (10, 60))
    ]  # fmt: skip
    yield span("Gemini 2.5, elastic", 0.934, elastic)


def long_run(
    chip: str, shape: str, slices: int, restart: float, saves: dict[str, int], **changes: Any
) -> TrainingResult:
    """Return a run of five days of steps of a second."""
    pod = ts.Slice(chip, shape, slices)
    run = TrainingRun(
        steps=5 * 86400,
        **AT_ONCE,
        checkpoints=Checkpoints(**saves, time_s=60.0),
        failures=Failures(runs=6, restart_s=restart, slowdown=1.02, **changes),
    )
    return train_step(small_step(pod), run)


def span(name: str, published: float, found: list[TrainingResult]) -> Point:
    """Return the span of the goodput of several runs."""
    goodputs = [each.goodput for each in found]
    return Point(name, published, min(goodputs), max(goodputs), "%")


def elastic_recovery() -> Iterator[Point]:
    """Yield the recovery of Qwen3 0.6B on three slices, and what is left of the throughput.

    Detection 13 s and 12.7 s to the next step are of a run on as many chips (Google Developers
    Blog, 2026); the restore follows from bytes, and a replacement takes 10 s.
    """
    pod = ts.Slice("v5e", "4x4", 3)
    plan = ts.Plan(mesh={"dcn_data": 3, "fsdp": 16}, seq_len=2048, global_batch=96)
    step = ts.simulate(ts.models.load("qwen3-0.6b"), plan, pod)
    causes = {"machine": {"per_day": 1, "detection_s": 13, "hang_share": 0}, **QUIET}
    run = TrainingRun(
        steps=1000,
        checkpoints=Checkpoints(every=100),
        failures=Failures(elastic=True, causes=causes),
    )
    yield value("elastic recovery, 3 slices", 40, restart_seconds(run_setup(step, run)), "s")
    kept = [1 - 1 / slices for slices in (16, 64)]
    yield Point("throughput without one of 16 to 64 slices", 0.97, *kept, "%")


def blocking_saves() -> Iterator[Point]:
    """Yield what is left of the throughput with a checkpoint after each step.

    The step, which is not published, follows from the slowest of the three: 4.48 s.
    """
    step_s = 6.77 * 0.3984 / (1 - 0.3984)
    given = AT_ONCE | {"step_time_s": step_s}
    for stop, published in ((0.04, 0.9923), (1.84, 0.7005), (6.77, 0.3984)):
        saves = Checkpoints(every=1, mode="blocking", time_s=stop)
        found = train_step(small_step(NODE), TrainingRun(steps=1000, **given, checkpoints=saves))
        yield value(f"throughput, {stop} s stopped each step", published, found.goodput, "%")


PARTS = (mean_times, ettr_runs, gemini, elastic_recovery, blocking_saves)


def life() -> Any:
    """Return the figure of the life of the run of `run.toml`."""
    from tpusim.report import plot_run_life, run_life_data

    read = ts.read_run(Path(__file__).parent / "ironwood_405b.toml")
    assert read.train is not None
    result = ts.train(read.model, read.plan, read.pod, read.train)
    return plot_run_life(run_life_data(result)).figure


def main() -> None:
    """Print the table, and write the figure."""
    parser = ArgumentParser(description="Published numbers of goodput beside what tpusim says.")
    parser.add_argument("--out", type=Path, help="folder of the figure")
    out = parser.parse_args().out
    print("| | published | tpusim |")
    print("| --- | ---: | ---: |")
    for part in PARTS:
        for point in part():
            print(point)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        life().savefig(out / "life.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
