"""The best mesh for the 480-billion-parameter encoder on 2048 v4 chips.

    python experiments/mesh_shapes/run.py --out mesh_shapes

Tries every factorisation into data, fsdp and tensor in every placement, with activations sharded
over tensor or not. `--quick` does the same for two layers on 16 chips.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib

import tpusim as ts
from tpusim.report import (
    mesh_heatmap_data,
    plot_mesh_heatmap,
    plot_ranking,
    ranking_data,
)

if TYPE_CHECKING:
    from pandas import DataFrame

SHARDING = {"none": "1-D", "act_embed=tensor": "2-D"}


def table(quick: bool, workers: int | None) -> "DataFrame":
    """Return one row per plan; `sharding` is 2-D if activations are sharded over tensor."""
    model = ts.models.load("bert-480b")
    pod = ts.Slice("v4", "2x2x4" if quick else "8x16x16")
    base = ts.Plan(
        mesh={"fsdp": pod.devices}, seq_len=512, global_batch=2 * pod.devices, optimizer="adafactor"
    )
    space = ts.Space(
        base=base, axes=("data", "fsdp", "tensor"), placements="all",
        vary={"rules": [{}, {"act_embed": "tensor"}]},
    )  # fmt: skip
    plans = ts.sweep(replace(model, layers=2) if quick else model, space, pod, workers=workers)
    plans["rules"] = plans["rules"].map(SHARDING)
    return plans.rename(columns={"rules": "sharding"})


def draw(plans: "DataFrame", folder: Path) -> None:
    """Write the two figures and their table."""
    folder.mkdir(parents=True, exist_ok=True)
    plans.to_csv(folder / "plans.csv", index=False)
    figures = {
        "mfu.svg": plot_mesh_heatmap(
            mesh_heatmap_data(plans), title="MFU of the best plan for each fsdp and tensor"
        ),
        "ranking.svg": plot_ranking(ranking_data(plans, 15)),
    }
    with matplotlib.rc_context({"svg.hashsalt": "mesh_shapes"}):
        for name, ax in figures.items():
            ax.figure.savefig(folder / name, metadata={"Date": None})


def main() -> None:
    """Write figures and table, and print the ten fastest plans."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out_mesh_shapes"))
    parser.add_argument("--workers", type=int)
    parser.add_argument("--quick", action="store_true", help="two layers on 16 chips")
    given = parser.parse_args()
    plans = table(given.quick, given.workers)
    draw(plans, given.out)
    fitting = plans[plans["fits"]].sort_values("step_time_s", kind="stable")
    print(f"{len(plans)} plans, {len(fitting)} fit")
    plan = ["data", "fsdp", "tensor", "sharding"]
    shown = fitting.drop_duplicates(plan)[[*plan, "placement", "step_time_s", "mfu"]]
    print(shown.head(10).to_string(index=False))


if __name__ == "__main__":
    main()
