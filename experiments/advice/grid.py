"""The best plan of each run by an exhaustive search over a grid.

    python experiments/advice/grid.py [NAME ...]

All combinations of nine sets of saved tensors, four attention blocks, two kinds of backward
kernels, 1 to 16 microbatches and four numbers of loss tiles, and of the schedules where the mesh
has stages, each simulated in the run's own placement. Writes `grid.csv` beside this file: for each
run how many plans the grid has and how many fit, the fastest of these, its step, and the seconds
that the search took.
"""

import argparse
import csv
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from runs import RUNS, Run

import tpusim as ts
from tpusim.base.toml_text import toml

SAVED: tuple[dict[str, Any], ...] = (
    {"remat": "full", "save": []},
    {"remat": "full", "save": ["context"]},
    {"remat": "full", "save": ["context", "q"]},
    {"remat": "full", "save": ["context", "q", "k", "v"]},
    {"remat": "full", "save": ["context", "q", "k", "v", "out"]},
    {"remat": "full", "save": ["q", "k", "v"]},
    {"remat": "dots"},
    {"remat": "minimal"},
    {"remat": "none"},
)
BLOCKS = (512, 1024, 2048, 4096)
BACKWARD = ("two-kernels", "one-kernel")
MICROBATCHES = (1, 2, 4, 8, 16)
LOSS_TILES = (1, 4, 8, 16)
SCHEDULES: tuple[dict[str, Any], ...] = (
    {"schedule": "1f1b", "virtual_stages": 1},
    {"schedule": "interleaved", "virtual_stages": 2},
    {"schedule": "interleaved", "virtual_stages": 4},
    {"schedule": "zb-h1", "virtual_stages": 1},
)
TABLE = Path(__file__).with_name("grid.csv")
COLUMNS = ("run", "step_s", "fit", "plans", "fitting", "best_s", "best", "search_s")


def grid(run: Run) -> Iterator[dict[str, Any]]:
    """Yield the keys of each plan of the grid."""
    staged = any("stage" in axis for axis in run.keys["mesh"])
    for saved, block, backward, microbatches, tiles, schedule in product(
        SAVED, BLOCKS, BACKWARD, MICROBATCHES, LOSS_TILES, SCHEDULES if staged else ({},)
    ):
        yield {
            **saved,
            "attention_block": [block, block],
            "attention_backward": backward,
            "microbatches": microbatches,
            "vocab_tiles": tiles,
            **schedule,
        }


def best(name: str, run: Run) -> dict[str, Any]:
    """Return the row of a run."""
    began, base = time.monotonic(), run.simulated()
    plans = fitting = 0
    fastest, what = float("inf"), ""
    for keys in grid(run):
        try:
            plan = base.plan.replace(**keys)
            found = ts.simulate(base.model, plan, base.pod, placement=base.placement)
        except ts.TpusimError:
            continue
        plans += 1
        if str(found.fit) != "fits":
            continue
        fitting += 1
        if found.step_time_s < fastest:
            fastest, what = found.step_time_s, toml(keys)
    return dict(
        zip(
            COLUMNS,
            (
                name,
                base.step_time_s,
                str(base.fit),
                plans,
                fitting,
                fastest,
                what,
                round(time.monotonic() - began),
            ),
            strict=True,
        )
    )


def main() -> None:
    """Search each run that is named, all by default, and keep the rows of the others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    names = parser.parse_args().names or [*RUNS]
    rows = {}
    if TABLE.exists():
        with TABLE.open(encoding="utf-8") as file:
            rows = {row["run"]: row for row in csv.DictReader(file)}
    for name in names:
        rows[name] = best(name, RUNS[name])
        print(*rows[name].values(), flush=True)
        with TABLE.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows[one] for one in RUNS if one in rows)


if __name__ == "__main__":
    main()
