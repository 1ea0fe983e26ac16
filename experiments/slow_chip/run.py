"""What one slow chip or link costs the 480-billion-parameter encoder on 2048 v4 chips.

    python experiments/slow_chip/run.py --out slow_chip

Slows one chip's cores, its HBM, or one link of each axis of the mesh, by several shares. `--quick`
takes the first two shares.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import tpusim as ts

SHARES = (0.9, 0.5, 0.95, 0.8, 0.7, 0.25)
CORNER, ALONG_X, ALONG_Z = [0, 0, 0], [1, 0, 0], [0, 0, 1]
PARTS = {
    "cores": lambda left: {"chips": [{"at": CORNER, "compute": left}]},
    "HBM": lambda left: {"chips": [{"at": CORNER, "hbm": left}]},
    "a link of tensor": lambda left: link(ALONG_X, left),
    "a link of fsdp": lambda left: link(ALONG_Z, left),
}


class Cost(NamedTuple):
    """The step with one slow part, and the share of it in which devices wait for others."""

    part: str
    left: float
    classes: int
    step_s: float
    longer: float
    waits: float


def link(end: list[int], left: float) -> dict[str, Any]:
    """Return a slow link from the corner to a neighbour."""
    return {"links": [{"between": [CORNER, end], "bandwidth": left}]}


def costs(shares: tuple[float, ...] = SHARES) -> Iterator[Cost]:
    """Yield the cost of each part with each share of its speed."""
    run = ts.read_run(Path(__file__).parents[1] / "bert_480b" / "run.toml")
    healthy = ts.simulate(run.model, run.plan, run.pod).step_time_s
    for part, slow in PARTS.items():
        for left in sorted(shares, reverse=True):
            pod = ts.Slice(run.pod.chip, run.pod.topology.dims, slow=slow(left))
            step = ts.simulate(run.model, run.plan, pod)
            waits = step.breakdown_s.get("exposed stragglers", 0.0) / step.step_time_s
            classes = len(step.timeline.lanes)
            longer = step.step_time_s / healthy - 1
            yield Cost(part, left, classes, step.step_time_s, longer, waits)


def draw(found: list[Cost]) -> Axes:
    """Return a figure: how much longer the step takes, by what is left of the part's speed."""
    ax = Figure(figsize=(7.2, 3.6), layout="constrained").add_subplot()
    for part in PARTS:
        rows = [cost for cost in found if cost.part == part]
        ax.plot([row.left for row in rows], [row.longer for row in rows], marker="o", label=part)
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    ax.set_xlabel("share left of the speed of one chip or link")
    ax.set_ylabel("longer step")
    ax.invert_xaxis()
    ax.legend(frameon=False)
    return ax


def main() -> None:
    """Write the figure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out_slow_chip"))
    parser.add_argument("--quick", action="store_true", help="two shares")
    given = parser.parse_args()
    found = list(costs(SHARES[:2] if given.quick else SHARES))
    given.out.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": "slow_chip"}):
        draw(found).figure.savefig(given.out / "cost.svg", metadata={"Date": None})
    print("| slow | share left | classes | step | longer | waits for stragglers |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for row in found:
        print(
            f"| {row.part} | {row.left:g} | {row.classes} | {row.step_s:.2f} s | "
            f"{row.longer:.1%} | {row.waits:.1%} |"
        )


if __name__ == "__main__":
    main()
