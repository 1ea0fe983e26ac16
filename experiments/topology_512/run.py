"""The effects of slice shape and sharding on a language model on 512 v4 chips.

    python experiments/topology_512/run.py --out topology_512

For each model size and each legal shape of 512 chips, it tries every mesh of fsdp and tensor in
every placement, with activations sharded over tensor or not. `--quick` tries one size, `--data`
meshes with a replicating axis too.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
from matplotlib.figure import Figure

import tpusim as ts
from tpusim.hardware import legal_shapes
from tpusim.report import plot_ranking, ranking_data

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame, Series

CHIPS, SEQ_LEN, BATCH = 512, 2048, 512
EMBEDS = (6144, 8192, 10240, 12288, 14336, 16384)
TYPICAL = 12288
"""The width of GPT-3: the size that `--quick` runs and whose plans are plotted."""

SHARDING = {"none": "1-D", "act_embed=tensor": "2-D"}
OLD, NEW = "4x8x16", "8x8x8"
FIRST = {"fsdp": 16, "tensor": 32, "sharding": "2-D"}
REVISED = {"fsdp": 64, "tensor": 8, "sharding": "2-D"}
"""The first plan ran on OLD, the revised one on NEW."""

PUBLISHED = {"first": 17.9, "revised": 41.3}
"""Sequences per second (arXiv:2304.01433, section on the choice of topology)."""

CURVES = {
    "first_to_best": (f"first plan on {OLD} against the best on {NEW}", "#0b3c5d", "o-"),
    "sharding": (f"first sharding against the best, both on {OLD}", "#328cc1", "s--"),
    "shape": (f"best plan on {OLD} against the best on {NEW}", "#e07b53", "^-"),
    "shape_first": (f"first sharding on {OLD} against the same on {NEW}", "#8a6d1f", "v:"),
}
"""Columns of `ratios`: label, colour and line style."""


def decoder(embed: int) -> ts.models.Transformer:
    """Return a decoder of GPT-3's proportions, with about 12 x layers x embed^2 weights.

    The number of heads, of 128 each, is rounded up to a multiple of 32, so none is padded on up to
    32 devices.
    """
    return ts.models.Transformer(
        name=f"decoder-{embed}", layers=embed // 128, embed=embed, mlp=4 * embed,
        heads=-(-embed // 4096) * 32, head_dim=128, vocab=50304, gated=False, activation="gelu",
        tied_embeddings=True, rotary=False,
    )  # fmt: skip


def shapes() -> list[str]:
    """Return the names of the legal shapes of the slice."""
    return ["x".join(map(str, dims)) for dims in legal_shapes("v4", CHIPS)]


def table(
    embeds: tuple[int, ...], axes: tuple[str, ...] = ("fsdp", "tensor"),
    batch: int = BATCH, workers: int | None = 1,
) -> "DataFrame":  # fmt: skip
    """Return one row per size, shape, plan and placement; `parameters` are those of the model."""
    from pandas import concat

    base = ts.Plan(mesh={"fsdp": CHIPS}, seq_len=SEQ_LEN, global_batch=batch)
    space = ts.Space(
        base=base, axes=axes, placements="all",
        vary={"rules": [{}, {"act_embed": "tensor"}]},
    )  # fmt: skip
    found = []
    for embed in embeds:
        model = decoder(embed)
        for shape in shapes():
            plans = ts.sweep(model, space, ts.Slice("v4", shape), workers=workers)
            plans.insert(0, "shape", shape)
            plans.insert(0, "parameters", model.parameter_count)
            found.append(plans)
    plans = concat(found, ignore_index=True)
    plans["rules"] = plans["rules"].map(SHARDING)
    plans["sequences_per_s"] = batch / plans["step_time_s"]
    return plans.rename(columns={"rules": "sharding"})


def fastest(plans: "DataFrame", **wanted: object) -> "Series":
    """Return the fastest plan that fits, of those with the wanted values."""
    for key, value in {"fits": True, **wanted}.items():
        plans = plans[plans[key] == value]
    return plans.loc[plans["step_time_s"].idxmin()]


def ratios(plans: "DataFrame") -> "DataFrame":
    """Return one row per size: speedup of the second of each pair of plans (see CURVES)."""
    from pandas import DataFrame

    rows = []
    for parameters, sized in plans.groupby("parameters"):
        best = {shape: fastest(sized, shape=shape)["step_time_s"] for shape in shapes()}
        first = {shape: fastest(sized, shape=shape, **FIRST) for shape in shapes()}
        revised = {shape: fastest(sized, shape=shape, **REVISED) for shape in shapes()}
        begun = first[OLD]["step_time_s"]
        rows.append(
            {
                "parameters": parameters,
                "first_to_best": begun / best[NEW],
                "sharding": begun / best[OLD],
                "shape": best[OLD] / best[NEW],
                "shape_first": begun / first[NEW]["step_time_s"],
                "shape_revised": revised[OLD]["step_time_s"] / revised[NEW]["step_time_s"],
                "first_sequences_per_s": first[OLD]["sequences_per_s"],
                "best_sequences_per_s": fastest(sized, shape=NEW)["sequences_per_s"],
            }
        )
    return DataFrame(rows)


def comparable(plans: "DataFrame") -> "DataFrame":
    """Return the plans of the sizes whose first and revised plan fit on every shape."""
    wanted = {(shape, *plan.values()) for shape in shapes() for plan in (FIRST, REVISED)}
    keys = ["shape", *FIRST]

    def fits(sized: "DataFrame") -> bool:
        return wanted <= set(sized.loc[sized["fits"], keys].itertuples(index=False, name=None))

    return plans.groupby("parameters").filter(fits)


def best_plans(plans: "DataFrame") -> "DataFrame":
    """Return the best plan of each size and shape."""
    from pandas import DataFrame

    columns = ["parameters", "shape", "fsdp", "tensor", "sharding", "placement", "step_time_s",
               "mfu", "sequences_per_s"]  # fmt: skip
    found = [
        fastest(sized, shape=shape)[columns]
        for _, sized in plans.groupby("parameters") for shape in shapes()
    ]  # fmt: skip
    return DataFrame(found).reset_index(drop=True)


def compared(plans: "DataFrame") -> "DataFrame":
    """Return the plans of one size that separate shape from sharding, in their best placement."""
    from pandas import DataFrame

    wanted_plans = [{"shape": shape, **plan} for plan in (FIRST, REVISED) for shape in shapes()]
    wanted_plans += [{"shape": shape} for shape in shapes()]
    shown = DataFrame([fastest(plans, **wanted) for wanted in wanted_plans])
    return shown[~shown.index.duplicated()].drop(columns=["parameters"])


def plot_ratios(found: "DataFrame") -> "Axes":
    """Plot each ratio over model sizes, and the published one."""
    ax = Figure(figsize=(8.4, 4.8), layout="constrained").add_subplot()
    billions = found["parameters"] / 1e9
    for column, (label, colour, style) in CURVES.items():
        ax.plot(billions, found[column], style, color=colour, label=label, markersize=5)
    published = PUBLISHED["revised"] / PUBLISHED["first"]
    ax.axhline(published, color="#1f2933", linewidth=1)
    ax.annotate(
        f"published: {published:.1f} (size not given)", (1, published), ha="right", va="bottom",
        xycoords=("axes fraction", "data"), xytext=(-2, 3), textcoords="offset points", fontsize=9,
    )  # fmt: skip
    ax.set(xscale="log", ylim=(0, 3.2), xlabel="parameters [billions]",
           ylabel="times as fast")  # fmt: skip
    ax.set_xticks(billions, [f"{size:.0f}" for size in billions])
    ax.minorticks_off()
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color="#e4e7eb")
    ax.set_title(f"{CHIPS} v4 chips: the sharding makes the difference, not the shape", loc="left")
    ax.legend(frameon=False, fontsize=9, loc="lower left", bbox_to_anchor=(0, 0.34))
    return ax


def draw(plans: "DataFrame", folder: Path) -> None:
    """Write the figures and their tables."""
    folder.mkdir(parents=True, exist_ok=True)
    typical = plans[plans["parameters"] == decoder(TYPICAL).parameter_count]
    plans.to_csv(folder / "plans.csv", index=False)
    best_plans(plans).to_csv(folder / "best.csv", index=False)
    ratios(plans).to_csv(folder / "ratios.csv", index=False)
    size = f"{decoder(TYPICAL).parameter_count / 1e9:.0f}B"
    figures = {
        "ratios": plot_ratios(ratios(plans)),
        "plans": plot_ranking(
            ranking_data(compared(typical)),
            title=f"A decoder of {size} on {CHIPS} v4 chips: what is slow is the sharding",
        ),
    }
    with matplotlib.rc_context({"svg.hashsalt": "topology_512"}):
        for name, ax in figures.items():
            ax.figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
            ax.figure.savefig(folder / f"{name}.png", dpi=110)


def main() -> None:
    """Write figures and tables, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out_topology_512"))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--batch", type=int, default=BATCH, help="sequences per step")
    parser.add_argument("--quick", action="store_true", help="one model size")
    parser.add_argument("--data", action="store_true", help="meshes with an axis data too")
    given = parser.parse_args()
    axes = ("data", "fsdp", "tensor") if given.data else ("fsdp", "tensor")
    embeds = (TYPICAL,) if given.quick else EMBEDS
    plans = comparable(table(embeds, axes, given.batch, given.workers))
    draw(plans, given.out)
    print(f"{len(plans)} plans, {plans['fits'].sum()} fit")
    print(best_plans(plans).to_string(index=False))
    print(ratios(plans).round(3).to_string(index=False))


if __name__ == "__main__":
    main()
