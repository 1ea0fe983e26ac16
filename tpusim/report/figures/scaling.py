"""Scaling curves: MFU by chips, a line for each curve, and measured runs where there are any."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpusim.report.figures import canvas
from tpusim.report.figures.palette import ALARM, INK, SMALL, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

_LOOKS: dict[tuple[str, str], Style] = {
    ("weak", "chips"): {"color": "#0b3c5d", "marker": "o"},
    ("strong", "chips"): {"color": "#0b3c5d", "marker": "o", "linestyle": "--", "mfc": "white"},
    ("weak", "slices"): {"color": "#328cc1", "marker": "s"},
    ("strong", "slices"): {"color": "#328cc1", "marker": "s", "linestyle": "--", "mfc": "white"},
}
_OVER = {"chips": "chips of a slice", "slices": "slices"}


@dataclass(frozen=True, slots=True)
class ScalingCurve:
    """A curve of the figure: chips and MFU of the plans that ran, and of measured runs.

    too_large: the points among them that do not fit.
    """

    curve: str
    over: str
    points: tuple[tuple[int, float], ...]
    too_large: tuple[tuple[int, float], ...]
    measured: tuple[tuple[int, float], ...]


def scaling_data(table: "DataFrame") -> tuple[ScalingCurve, ...]:
    """Return the curves of a `Scaling.table`; a curve without plans that ran is left out."""
    curves = []
    for (curve, over), rows in table.groupby(["curve", "over"], sort=False):
        ran = rows[rows["mfu"].notna()]
        if len(ran):
            points = _points(ran, "mfu")
            tight = _points(ran[~ran["fits"].astype(bool)], "mfu")
            known = "measured_mfu" in rows
            seen = _points(ran[ran["measured_mfu"].notna()], "measured_mfu") if known else ()
            curves.append(ScalingCurve(str(curve), str(over), points, tight, seen))
    return tuple(curves)


def _points(rows: "DataFrame", column: str) -> tuple[tuple[int, float], ...]:
    return tuple(zip(map(int, rows["chips"]), map(float, rows[column]), strict=True))


def plot_scaling(
    data: tuple[ScalingCurve, ...], ax: "Axes | None" = None, title: str = "Scaling"
) -> "Axes":
    """Draw MFU over chips; crossed points do not fit in HBM, stars were measured."""
    if ax is None:
        ax = canvas.new_figure(7.2, 4.2).add_subplot()
    for each in data:
        label = f"{each.curve}, over {_OVER[each.over]}"
        ax.plot(*zip(*each.points, strict=True), label=label, **_LOOKS[each.curve, each.over])
    _draw_points(ax, [at for each in data for at in each.too_large], "x", "does not fit in HBM")
    _draw_points(ax, [at for each in data for at in each.measured], "*", "measured")
    chips = sorted({at for each in data for at, _ in each.points})
    ax.set_xscale("log", base=2)
    ax.set_xticks(chips, [f"{count:,}" for count in chips])
    ax.minorticks_off()
    tops = [mfu for each in data for _, mfu in (*each.points, *each.measured)]
    ax.set_ylim(0, 1.1 * max(tops, default=1.0))
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    ax.set_xlabel("chips", color=INK)
    ax.set_ylabel("MFU", color=INK)
    canvas.simplify_axes(ax, grid="both")
    if data:
        ax.legend(frameon=False, fontsize=SMALL, loc="lower left")
    canvas.draw_title(ax, title, pad=8)
    return ax


def _draw_points(ax: "Axes", points: list[tuple[int, float]], marker: str, label: str) -> None:
    if points:
        where = zip(*points, strict=True)
        ax.plot(*where, marker, color=ALARM, markersize=9, zorder=4, label=label)
