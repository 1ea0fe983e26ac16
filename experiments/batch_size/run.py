"""The time and cost of a trillion tokens by global batch, microbatches and chips.

    python experiments/batch_size/run.py --out batch_size

Llama 3.1 8B with FSDP on v6e. The first table has the fewest microbatches that fit for each batch
and slice; the second changes one plan at a time.
"""

import argparse
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import tpusim as ts

TOKENS = 1e12
SEQ_LEN = 4096
SLICES = ("8x8", "8x16", "16x16")
BATCHES = (64, 128, 256, 512, 1024, 2048, 4096)
MICROBATCHES = (1, 2, 4, 8, 16, 32)
DAY_S = 86400.0

BASE = ("16x16", 1024)
"""The slice and the global batch whose plan is changed."""

CHANGES: Mapping[str, Mapping[str, Any]] = {
    "mixed precision (bf16 matmuls, f32 weights)": {},
    "2 microbatches": {"microbatches": 2},
    "4 microbatches": {"microbatches": 4},
    "4 microbatches, gradients summed once": {"microbatches": 4, "gradient_reduction": "per-step"},
    "f32 throughout": {"dtype": "f32", "grad_dtype": "f32"},
    "bf16 optimizer state": {"moment_dtype": "bf16"},
    "int8 matmuls": {"matmul_dtype": "int8"},
    "int8 matmuls and gathers": {"matmul_dtype": "int8", "gather_dtype": "int8"},
    "fp8 matmuls": {"matmul_dtype": "fp8"},
    "matmul outputs kept": {"remat": "minimal"},
    "matmul outputs kept, 2 microbatches": {"remat": "minimal", "microbatches": 2},
    "matmul outputs kept, 4 microbatches": {"remat": "minimal", "microbatches": 4},
}
"""What is changed, and the keys of the plan that change it."""


class Trained(NamedTuple):
    """A plan, and what a run of `TOKENS` takes with it."""

    chips: int
    batch: int
    microbatches: int
    step_s: float
    mfu: float
    fit: str
    hbm: float
    days: float
    usd: tuple[float, float, float]

    @property
    def cells(self) -> str:
        """The columns that both tables have."""
        usd, low, high = (each / 1e3 for each in self.usd)
        return (
            f"{self.step_s:.2f} s | {self.mfu:.1%} | {self.hbm:.0%} | {self.days:.1f} | "
            f"{usd:.0f} ({low:.0f} to {high:.0f})"
        )


@cache
def trained(slice_shape: str, batch: int, changes: tuple[tuple[str, Any], ...] = ()) -> Trained:
    """Return the training run of a plan."""
    pod = ts.Slice("v6e", slice_shape)
    mesh = {"fsdp": pod.devices}
    plan = ts.Plan(mesh=mesh, seq_len=SEQ_LEN, global_batch=batch, **dict(changes))
    run = ts.train(ts.models.load("llama3.1-8b"), plan, pod, ts.TrainingRun(tokens=TOKENS))
    assert run.cost_usd is not None
    return Trained(
        chips=pod.chips,
        batch=batch,
        microbatches=plan.microbatches,
        step_s=run.step_time_s,
        mfu=run.step.mfu,
        fit=str(run.step.fit),
        hbm=run.step.hbm_peak_bytes / run.step.hbm_bytes,
        days=run.wall_s.value / DAY_S,
        usd=run.cost_usd,
    )


def fewest(slice_shape: str, batch: int) -> Trained | None:
    """Return the run with the fewest microbatches that fit, or None if none does.

    Each microbatch has at least one sequence for each device.
    """
    devices = ts.Slice("v6e", slice_shape).devices
    for count in MICROBATCHES:
        if batch >= count * devices:
            found = trained(slice_shape, batch, (("microbatches", count),))
            if found.fit == "fits":
                return found
    return None


def sizes(batches: tuple[int, ...] = BATCHES) -> Iterator[Trained]:
    """Yield the run of each slice and batch that there is."""
    for shape in SLICES:
        for batch in batches:
            if (found := fewest(shape, batch)) is not None:
                yield found


def changed() -> Iterator[tuple[str, Trained]]:
    """Yield each change of the plan in words, and its run."""
    for what, keys in CHANGES.items():
        yield what, trained(*BASE, tuple(keys.items()))


def size_line(row: Trained) -> str:
    """Return a row of the first table."""
    tokens = row.batch * SEQ_LEN / 1e6
    return f"| {row.chips} | {row.batch} | {tokens:.2f}M | {row.microbatches} | {row.cells} |"


def change_line(what: str, row: Trained) -> str:
    """Return a row of the second table."""
    return f"| {what} | {row.cells} | {row.fit} |"


def draw(found: list[Trained]) -> Figure:
    """Return a figure: days and dollars of a run by the tokens of a batch, a line a slice."""
    figure = Figure(figsize=(8.0, 3.4), layout="constrained")
    days, dollars = figure.subplots(1, 2)
    for chips, marker in zip(sorted({row.chips for row in found}), "os^", strict=True):
        rows = [row for row in found if row.chips == chips]
        tokens = [row.batch * SEQ_LEN / 1e6 for row in rows]
        days.plot(tokens, [row.days for row in rows], marker=marker, label=f"{chips} chips")
        dollars.plot(tokens, [row.usd[0] / 1e3 for row in rows], marker=marker)
    _label(days, "days for a trillion tokens")
    _label(dollars, "thousand USD on demand")
    days.legend(frameon=False)
    return figure


def _label(ax: Axes, what: str) -> None:
    """Label the axes of one part of the figure."""
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}M")
    ax.set_xlabel("tokens in a global batch")
    ax.set_ylabel(what)
    ax.set_ylim(0, 1.05 * ax.dataLim.ymax)


def main() -> None:
    """Write the figure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out_batch_size"))
    given = parser.parse_args()
    found = list(sizes())
    given.out.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": "batch_size"}):
        draw(found).savefig(given.out / "batch_size.svg", metadata={"Date": None})
    common = "step | MFU | HBM | days | thousand USD |"
    print(f"| chips | batch | tokens | microbatches | {common}")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for row in found:
        print(size_line(row))
    print(f"\n| plan | {common} in HBM |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | --- |")
    for what, row in changed():
        print(change_line(what, row))


if __name__ == "__main__":
    main()
