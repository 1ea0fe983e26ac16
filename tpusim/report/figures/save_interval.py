"""The expected time of a training run with failures over the steps between its checkpoints."""

from math import isfinite
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tpusim.report.figures import canvas
from tpusim.report.figures.palette import INK, Style
from tpusim.report.figures.training import time_axis
from tpusim.training import TrainingResult, expected_by_interval, save_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = 60
REACH = 4
"""Points of the curve, and how far it goes beyond its marks: so many times."""

TALLEST = 2.0
"""The highest time on the axis over the shortest, unless a mark is above it."""

MARKS = (("o", "#328cc1"), ("D", "#f2a541"), ("^", "#7b8794"), ("v", "#b3261e"))
"""The look of each mark, in the order of `IntervalCurve.marks`."""


class IntervalCurve(NamedTuple):
    """What the figure shows.

    points: steps between checkpoints, and the expected wall seconds.
    marks: names of intervals, their steps and expected wall seconds.
    simulated: steps between the run's own checkpoints, the mean wall seconds of its random runs,
        and the standard error of that mean.
    """

    title: str
    points: tuple[tuple[int, float], ...]
    marks: tuple[tuple[str, int, float], ...]
    simulated: tuple[int, float, float]


def interval_data(result: TrainingResult) -> IntervalCurve | None:
    """Return the curve of a run with failures and one tier of checkpoints; None for any other."""
    found, best, saves = result.failures, save_interval(result), result.run.checkpoints
    if found is None or best is None or saves is None or best.memory_every is not None:
        return None
    expected = expected_by_interval(result.step, result.run)
    names = {"as given": saves.every, "best": best.every, "Young": best.young, "Daly": best.daly}
    steps = {name: max(1, round(each)) for name, each in names.items()}
    low, high = min(steps.values()) / REACH, min(max(steps.values()) * REACH, result.steps)
    scale = {*np.geomspace(max(low, 1), high, POINTS).round().astype(int).tolist()}
    points = ((each, expected(each, None)) for each in sorted(scale | {*steps.values()}))
    return IntervalCurve(
        f"{result.step.title}: {best.every:,} steps between checkpoints are best",
        tuple(point for point in points if isfinite(point[1])),
        tuple((name, each, expected(each, None)) for name, each in steps.items()),
        (saves.every, found.mean_s, found.error_s),
    )


def plot_interval(data: IntervalCurve) -> "Axes":
    """Draw the curve and its marks on a new figure."""
    ax = canvas.new_figure(7.2, 3.2).add_subplot()
    steps, mean, error = data.simulated
    times = [seconds for _, seconds in data.points]
    shown = [mean + error, *(seconds for _, _, seconds in data.marks if isfinite(seconds))]
    unit, length = time_axis(min(times))
    ax.plot([each for each, _ in data.points], [each / length for each in times], color="#0b3c5d")
    for (name, at, seconds), (mark, color) in zip(data.marks, MARKS, strict=True):
        if isfinite(seconds):
            label = f"{name}: {at:,} steps"
            ax.plot(at, seconds / length, mark, color=color, alpha=0.8, label=label)
    look: Style = {"color": INK, "capsize": 3, "label": "as given, simulated: mean of the runs"}
    ax.errorbar(steps, mean / length, error / length, fmt="x", **look)
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    least = min(times)
    ax.set_ylim(
        0.98 * least / length, 1.02 * max(*shown, min(max(times), TALLEST * least)) / length
    )
    ax.set_xlabel("steps between checkpoints", color=INK)
    ax.set_ylabel(f"expected wall time [{unit}]", color=INK)
    canvas.simplify_axes(ax, grid="both")
    ax.legend(frameon=False, fontsize=8)
    canvas.draw_title(ax, data.title, pad=8)
    return ax
