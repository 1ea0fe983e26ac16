"""A training run: a bar for each bucket of its wall time, and its progress over that time."""

from typing import TYPE_CHECKING, NamedTuple

from tpusim.engine.interrupted_run import Outcome
from tpusim.engine.training_loop import Activity
from tpusim.report.figures import canvas
from tpusim.report.figures.palette import INK, MUTED, Style
from tpusim.results import PICO
from tpusim.training import TrainingResult, duration
from tpusim.training.durations import DAY_S, HOUR_S
from tpusim.training.result import GOODPUT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

BAR = 0.6
LABEL_ROOM = 1.3
MOST_POINTS = 2000
"""Points of the curve at most; of more, some are left out at equal distances."""


class TrainingBar(NamedTuple):
    """Seconds of a bucket, and the ends of their range."""

    bucket: str
    seconds: float
    low: float
    high: float


class TrainingCurves(NamedTuple):
    """What the figure shows.

    bars: buckets that have any time, except that of the steps.
    progress: wall seconds and steps done by then; with failures, of the random run of median
        length.
    ends_s: wall seconds of the run at the ends of its range.
    """

    title: str
    bars: tuple[TrainingBar, ...]
    progress: tuple[tuple[float, int], ...]
    ends_s: tuple[float, float]


def training_data(result: TrainingResult) -> TrainingCurves:
    """Return the bars and the curve of a run."""
    bars = tuple(
        TrainingBar(name, *each)
        for name, each in result.buckets.items()
        if each.high and name != GOODPUT
    )
    points = _progress(result) if result.failures is None else life_progress(result.failures.life)
    every = len(points) // MOST_POINTS + 1
    kept = (*points[:-1:every], points[-1])
    wall = result.wall_s
    title = f"{result.step.title}: {duration(wall.value)}, goodput {result.goodput:.1%}"
    return TrainingCurves(title, bars, kept, (wall.low, wall.high))


def _progress(result: TrainingResult) -> list[tuple[float, int]]:
    """Return wall seconds and steps done by then, of a run without failures."""
    points = [(0.0, 0)]
    before = 0
    for span in result.timeline.sampled(MOST_POINTS):
        if span.activity is Activity.STEPS:
            points += [(span.start_ps * PICO, before), (span.end_ps * PICO, span.step)]
            before = span.step
    return [*points, (result.wall_s.value, before)]


def life_progress(life: Outcome) -> list[tuple[float, int]]:
    """Return wall seconds and steps done by then, of a random run; a failure undoes some."""
    points: list[tuple[float, int]] = [(0.0, 0)]
    done = 0
    for span in life.spans:
        if span.step < done:
            points.append((span.start_ps * PICO, span.step))
        done = span.step
        points.append((span.end_ps * PICO, done))
    return points


def plot_training(data: TrainingCurves) -> "Axes":
    """Draw the curve above the bars on a new figure; return the axes of the curve."""
    figure = canvas.new_figure(7.2, 3.6 + 0.4 * len(data.bars))
    heights = [2.4, 0.6 + 0.4 * len(data.bars)]
    grid = figure.add_gridspec(2, 1, height_ratios=heights)
    upper, lower = figure.add_subplot(grid[0]), figure.add_subplot(grid[1])
    _draw_progress(upper, data)
    _draw_bars(lower, data.bars)
    return upper


def _draw_progress(ax: "Axes", data: TrainingCurves) -> None:
    unit, length = time_axis(data.ends_s[1])
    times = [at / length for at, _ in data.progress]
    ax.plot(times, [step for _, step in data.progress], color="#0b3c5d")
    look: Style = {"color": "#a3d0ea", "alpha": 0.5, "label": "range of the end"}
    ax.axvspan(*(end / length for end in data.ends_s), **look)
    ax.set_xlim(0, 1.03 * data.ends_s[1] / length)
    ax.set_ylim(0, None)
    ax.set_xlabel(f"wall time [{unit}]", color=INK)
    ax.set_ylabel("steps", color=INK)
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    canvas.simplify_axes(ax, grid="both")
    ax.legend(frameon=False, fontsize=8, loc="upper left")
    canvas.draw_title(ax, data.title, pad=8)


def _draw_bars(ax: "Axes", bars: "Sequence[TrainingBar]") -> None:
    unit, length = time_axis(max((bar.high for bar in bars), default=1.0))
    for row, bar in enumerate(bars):
        ends = [[(bar.seconds - bar.low) / length], [(bar.high - bar.seconds) / length]]
        look: Style = {"xerr": ends, "color": "#f2a541", "ecolor": MUTED, "capsize": 3}
        ax.barh(row, bar.seconds / length, BAR, **look)
        text = duration(bar.seconds)
        canvas.draw_note(ax, text, (bar.high / length, row), (5, 0), va="center")
    ax.set_yticks(range(len(bars)), [bar.bucket for bar in bars])
    ax.invert_yaxis()
    ax.set_xlim(0, LABEL_ROOM * max((bar.high for bar in bars), default=1.0) / length)
    ax.set_xlabel(f"wall time without steps [{unit}]", color=INK)
    canvas.simplify_axes(ax, rows=True)


def time_axis(longest: float) -> tuple[str, float]:
    """Return the unit of an axis, and its seconds."""
    for unit, length in (("days", DAY_S), ("hours", HOUR_S), ("minutes", 60.0)):
        if longest >= 2 * length:
            return unit, length
    return "s", 1.0
