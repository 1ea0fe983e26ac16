"""Predicted against measured step times of many runs, both on logarithmic axes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpusim.report.figures import canvas
from tpusim.report.figures.palette import GRID_LINE, INK, MUTED, Style
from tpusim.report.figures.render import svg_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BAND = 0.1
"""The error at the edges of the grey band."""
ROOM = 1.4
"""The factor between the outermost points and the ends of the axes."""
CHIP_MARKS: dict[str, tuple[str, str]] = {
    "v2": ("P", "#ffffff"),
    "v3": ("X", "#1f2933"),
    "v4": ("o", "#0b3c5d"),
    "v5e": ("s", "#a3d0ea"),
    "v5p": ("^", "#328cc1"),
    "v6e": ("D", "#f2a541"),
    "7x": ("v", "#5c8a72"),
}
"""Marker and colour of each generation."""
OTHER_MARK = ("*", MUTED)


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """A measured run: its chip, seconds per step, and the range that was predicted."""

    chip: str
    predicted_s: float
    measured_s: float
    low_s: float
    high_s: float


def plot_predicted_measured(data: Sequence[MeasuredPoint], ax: "Axes | None" = None) -> "Axes":
    """Draw a marker for each run, and a whisker along its range; returns the axes.

    Runs above the line are slower than predicted.
    """
    if ax is None:
        ax = canvas.new_figure(7.2, 6.4).add_subplot()
    seconds = [value for point in data for value in (point.predicted_s, point.measured_s)]
    ends = min(seconds) / ROOM, max(seconds) * ROOM
    ax.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
    canvas.simplify_axes(ax, grid="both")
    lower, upper = ([end * (1 + side * BAND) for end in ends] for side in (-1, 1))
    ax.fill_between(ends, lower, upper, color=GRID_LINE, linewidth=0, label=f"within {BAND:.0%}")
    ax.plot(ends, ends, color=MUTED, linewidth=0.8)
    for point in data:
        across = [point.predicted_s, point.predicted_s]
        ax.plot(across, [point.low_s, point.high_s], color=MUTED, linewidth=0.5, alpha=0.7)
    for chip in (*CHIP_MARKS, None):
        some = [point for point in data if _mark_name(point) == chip]
        if some:
            _draw_chip(ax, chip or "other", some)
    ax.set_xlabel("predicted step time [s]; a whisker is the range predicted from other families")
    ax.set_ylabel("measured step time [s]")
    ax.legend(loc="upper left", frameon=False, fontsize=9)
    canvas.draw_title(ax, predicted_measured_title(data), pad=8)
    return ax


def predicted_measured_title(data: Sequence[MeasuredPoint]) -> str:
    """Return the number of runs, and how many are within the band and within their range."""
    near = sum(abs(point.predicted_s / point.measured_s - 1) <= BAND for point in data)
    inside = sum(point.low_s <= point.measured_s <= point.high_s for point in data)
    return (
        f"{len(data)} measured runs: {near} predicted within {BAND:.0%}, {inside} within their "
        "80 % range"
    )


def predicted_measured_svg(data: Sequence[MeasuredPoint]) -> bytes:
    """Return the figure as SVG, with its title as metadata."""
    return svg_bytes(lambda: plot_predicted_measured(data), predicted_measured_title(data))


def _mark_name(point: MeasuredPoint) -> str | None:
    return point.chip if point.chip in CHIP_MARKS else None


def _draw_chip(ax: "Axes", chip: str, some: Sequence[MeasuredPoint]) -> None:
    marker, colour = CHIP_MARKS.get(chip, OTHER_MARK)
    style: Style = {"marker": marker, "color": colour, "markeredgecolor": INK, "markersize": 6}
    xs, ys = [point.predicted_s for point in some], [point.measured_s for point in some]
    ax.plot(xs, ys, linestyle="", markeredgewidth=0.4, label=chip, **style)
