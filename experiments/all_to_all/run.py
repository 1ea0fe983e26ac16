"""Scaling of an all-to-all with the size of the torus, and the gain of a twist.

    python experiments/all_to_all/run.py --out all_to_all

All times are of one collective alone. `--hops` also sends every message of all-to-alls on up to 512
chips over every link, as a check on the flow model.
"""

import argparse
from dataclasses import dataclass
from math import prod
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import matplotlib
from matplotlib.figure import Figure

import tpusim as ts
from tpusim.base.phase import Phase
from tpusim.costs import collective_seconds, cost_program, route
from tpusim.engine import run
from tpusim.hardware import DIE, Span, Topology, placements
from tpusim.program import Collective, CollectiveKind, Program

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

MB = 1e6
SIZES = (8 * MB, 32 * MB)
"""Bytes that each partition, a v3 core, exchanges (arXiv:2006.16668, figure 9)."""

SCALED = ((2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16), (16, 32), (32, 32))
"""16 to 2048 partitions, two per chip."""

TWISTABLE = ("4x4x8", "4x8x8", "8x8x16", "8x16x16")
PUBLISHED = {"4x4x8": (1.70, 1.63), "4x8x8": (1.40, 1.31)}
"""Gains of a twist in all-to-all bandwidth: Cloud TPU documentation (v4), and measured
(arXiv:2304.01433)."""

GSHARD = 9.0
"""Time of the all-to-all with 2048 partitions over that with 16 (arXiv:2006.16668)."""

KINDS = {
    "all_to_all": CollectiveKind.ALL_TO_ALL,
    "all_gather": CollectiveKind.ALL_GATHER,
    "all_reduce": CollectiveKind.ALL_REDUCE,
}
BYTES = 64 * MB
"""Bytes that each chip exchanges, gathers or reduces on twisted and regular tori."""

HOPPED = ("4x4x4", "4x4x8", "4x4x8_twisted", "8x8x8")


def whole(topology: Topology) -> tuple[Span, ...]:
    """Return the spans of all chips of a torus."""
    return tuple(Span(dim, length) for dim, length in enumerate(topology.dims))


def scaling() -> "DataFrame":
    """Return seconds of an all-to-all among v3 cores, on full tori and with v3's own wraparound.

    Below 16x32 chips no dimension of v3 closes to a ring; at 32x32 both do.
    """
    from pandas import DataFrame

    chip = ts.load_chip("v3")
    rows = []
    for dims in SCALED:
        row = {"chips": "x".join(map(str, dims)), "partitions": chip.devices * prod(dims)}
        wraps = {"torus": (True,) * len(dims), "v3": chip.slice_rules.wraparound(dims)}
        for name, wrap in wraps.items():
            topology = Topology(dims, wrap)
            cores = (*whole(topology), Span(DIE, chip.devices))
            for nbytes in SIZES:
                seconds = collective_seconds(
                    CollectiveKind.ALL_TO_ALL, nbytes, cores, chip, topology
                )
                row[f"{name}_{nbytes / MB:.0f}MB_s"] = float(seconds)
            row[f"{name}_bisection_links"] = topology.bisection_links
        rows.append(row)
    return DataFrame(rows)


def twists(shapes: tuple[str, ...] = TWISTABLE) -> "DataFrame":
    """Compare regular and twisted v4 tori: bisection, seconds of collectives, gain of the twist.

    gain: bandwidth of the busiest link of an all-to-all, without launch and latency; the others are
        ratios of times.
    """
    from pandas import DataFrame

    chip = ts.load_chip("v4")
    rows = []
    for shape in shapes:
        row: dict[str, object] = {"shape": shape}
        share = {}
        for twisted in (False, True):
            topology = Topology.of("v4", shape, twisted=twisted)
            name = "twisted" if twisted else "regular"
            share[name] = route(CollectiveKind.ALL_TO_ALL, whole(topology), topology).share
            row[f"{name}_bisection_links"] = topology.bisection_links
            for key, kind in KINDS.items():
                seconds = collective_seconds(kind, BYTES, whole(topology), chip, topology)
                row[f"{name}_{key}_s"] = float(seconds)
        row["gain"] = share["regular"] / share["twisted"]
        row["documented"], row["measured"] = PUBLISHED.get(shape, (None, None))
        rows.append(row)
    return DataFrame(rows)


@dataclass(frozen=True, slots=True)
class Check:
    """Seconds of an all-to-all as a flow and hop by hop, and the cost of simulating the latter."""

    shape: str
    flow_s: float
    hops_s: float
    crossings: int
    wall_s: float


def hop_by_hop(shape: str, nbytes: float = SIZES[0]) -> Check:
    """Simulate an all-to-all among all chips of a v4 slice as a flow and hop by hop."""
    pod = ts.Slice("v4", shape)
    mesh = {"all": pod.devices}
    op = Collective(
        name="exchange", phase=Phase.FORWARD, kind=CollectiveKind.ALL_TO_ALL, axes=("all",),
        bytes=nbytes, dtype="bf16",
    )  # fmt: skip
    program = Program(name="exchange", axes=tuple(mesh.items()), body=(op,))
    costed = cost_program(program, pod, placements(pod, mesh)[0])
    began = perf_counter()
    stepped = run([costed], network="hops")
    wall = perf_counter() - began
    flow = run([costed])
    return Check(shape, flow.total_ps / 1e12, stepped.total_ps / 1e12, stepped.stats.events, wall)


def growth(scaled: "DataFrame", column: str) -> float:
    """Return the time of the largest exchange over that of the smallest."""
    return float(scaled[column].iloc[-1] / scaled[column].iloc[0])


def plot_scaling(ax: "Axes", scaled: "DataFrame") -> None:
    """Plot the time over partitions, on a torus and with v3's wraparound, and GShard's growth."""
    styles = {"torus": ("o-", "torus at every size"), "v3": ("s--", "wraps of v3's slices")}
    for name, (style, words) in styles.items():
        for nbytes, colour in zip(SIZES, ("#328cc1", "#0b3c5d"), strict=True):
            column = f"{name}_{nbytes / MB:.0f}MB_s"
            ax.plot(
                scaled["partitions"], scaled[column] * 1e3, style, color=colour, markersize=4,
                label=f"{nbytes / MB:.0f} MB, {words} (x{growth(scaled, column):.1f})",
            )  # fmt: skip
    first = scaled["torus_32MB_s"].iloc[0] * 1e3
    ends = scaled["partitions"].iloc[[0, -1]]
    ax.plot(ends, [first, first * GSHARD], ":", color="#b3261e", label="GShard's growth (x9)")
    ax.set(xscale="log", yscale="log", xlabel="partitions (cores, two a chip)",
           ylabel="time [ms]")  # fmt: skip
    ax.set_xticks(scaled["partitions"], scaled["partitions"])
    ax.set_yticks([0.1, 0.2, 0.5, 1, 2, 5], ["0.1", "0.2", "0.5", "1", "2", "5"])
    ax.minorticks_off()
    ax.set_title("An all-to-all slows in step with the longest dimension of the torus", loc="left")
    ax.legend(frameon=False, fontsize=8, loc="upper left")


def plot_twists(ax: "Axes", twisted: "DataFrame") -> None:
    """Plot the simulated, documented and measured gains of a twist."""
    bars = {
        "gain": ("all shortest ways", "#0b3c5d", ""),
        "documented": ("documented", "#a3d0ea", "//"),
        "measured": ("measured", "#f2a541", ".."),
    }
    for at, (column, (label, colour, hatch)) in enumerate(bars.items()):
        known = twisted[twisted[column].notna()]
        places = [
            place + 0.27 * (at - 1) * bool(known["measured"].notna()[place])
            for place in known.index
        ]
        made = ax.bar(places, known[column].astype(float), 0.25, color=colour, hatch=hatch,
                      edgecolor="#1f2933", linewidth=0.4, label=label)  # fmt: skip
        ax.bar_label(made, [f"{gain:.2f}" for gain in known[column]], fontsize=8, padding=2)
    ax.axhline(1, color="#1f2933", linewidth=1)
    ax.set_xticks(twisted.index, twisted["shape"])
    ax.set(ylim=(0, 2.3), ylabel="all-to-all bandwidth, twisted over regular")
    ax.set_title("A twist gains most in all-to-all where two dimensions are short (v4)", loc="left")
    ax.legend(frameon=False, fontsize=8, ncols=3, loc="upper left")


def draw(scaled: "DataFrame", twisted: "DataFrame", folder: Path) -> None:
    """Write the figures and their tables."""
    folder.mkdir(parents=True, exist_ok=True)
    scaled.to_csv(folder / "scaling.csv", index=False)
    twisted.to_csv(folder / "twists.csv", index=False)
    plots = {"scaling": (plot_scaling, scaled), "twists": (plot_twists, twisted)}
    with matplotlib.rc_context({"svg.hashsalt": "all_to_all"}):
        for name, (plot, table) in plots.items():
            figure = Figure(figsize=(7.6, 4.4), layout="constrained")
            ax = figure.add_subplot()
            plot(ax, table)
            ax.spines[["top", "right"]].set_visible(False)
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
            figure.savefig(folder / f"{name}.png", dpi=110)


def main() -> None:
    """Write figures and tables, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out_all_to_all"))
    parser.add_argument("--hops", action="store_true", help="check hop by hop, up to 512 chips")
    given = parser.parse_args()
    scaled, twisted = scaling(), twists()
    draw(scaled, twisted, given.out)
    print(scaled.to_string(index=False))
    print(twisted.T.to_string(header=False))
    for shape in HOPPED if given.hops else ():
        check = hop_by_hop(shape)
        print(f"{check}: flow {check.flow_s / check.hops_s - 1:+.1%}")


if __name__ == "__main__":
    main()
