"""The life of a training run with failures: its progress, when it failed, and what that cost."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tpusim.engine.training_loop import Activity
from tpusim.report.figures import canvas
from tpusim.report.figures.palette import INK, MUTED, Style
from tpusim.report.figures.training import life_progress, time_axis
from tpusim.results import PICO
from tpusim.training import TrainingResult, duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BAR = 0.6
CAUSE_SHADES = ("#b3261e", "#f2a541", "#328cc1", "#0b3c5d", "#7b8794", "#a3d0ea")
LOSSES: dict[str, tuple[Activity, ...]] = {
    "steps done again": (Activity.LOST_STEPS,),
    "detection": (Activity.DETECTION,),
    "replacement": (Activity.REPLACEMENT,),
    "restart": (Activity.INITIALIZATION, Activity.COMPILATION, Activity.WARM_UP),
    "restore": (Activity.RESTORE,),
    "checkpoints": (Activity.CHECKPOINT, Activity.CHECKPOINT_WAIT, Activity.MEMORY_COPY),
    "resharding": (Activity.RESHARD, Activity.SCALE_UP),
    "fewer slices": (Activity.SLICES_DOWN,),
    "broken torus": (Activity.DEGRADED,),
}
"""What a run with failures loses time to, and its activities."""


class RunLife(NamedTuple):
    """What the figure shows.

    progress: wall seconds and steps done by then, of the random run of median length.
    events: wall seconds of each of its failures, and their causes.
    healthy_s: wall seconds of the run without failures.
    losses: mean wall seconds of all random runs by what they are lost to.
    ends_s: wall seconds of the tenth and the ninetieth percentile.
    """

    title: str
    progress: tuple[tuple[float, int], ...]
    events: tuple[tuple[float, str], ...]
    healthy_s: float
    losses: tuple[tuple[str, float], ...]
    ends_s: tuple[float, float]


def run_life_data(result: TrainingResult) -> RunLife:
    """Return the progress of a run with failures, and its losses. Raise ValueError without them."""
    found = result.failures
    if found is None:
        raise ValueError("the run has no failures; give TrainingRun(failures=...)")
    sums = {
        name: sum(found.spent_s.get(activity, 0.0) for activity in activities)
        for name, activities in LOSSES.items()
    }
    quantiles = found.quantiles_s()
    title = (
        f"{result.step.title}: median run of {duration(found.life.total_ps * PICO)} with "
        f"{len(found.life.events):,} failures"
    )
    return RunLife(
        title,
        tuple(life_progress(found.life)),
        tuple((at * PICO, name) for at, name in found.life.events),
        result.timeline.total_ps * PICO,
        tuple((name, each) for name, each in sums.items() if each),
        (quantiles[0.1], quantiles[0.9]),
    )


def plot_run_life(data: RunLife) -> "Axes":
    """Draw progress above losses on a new figure; return the axes of the progress."""
    figure = canvas.new_figure(7.2, 4.0 + 0.3 * len(data.losses))
    grid = figure.add_gridspec(2, 1, height_ratios=[2.8, 0.6 + 0.3 * len(data.losses)])
    upper, lower = figure.add_subplot(grid[0]), figure.add_subplot(grid[1])
    _draw_progress(upper, data)
    _draw_losses(lower, data.losses)
    return upper


def _draw_progress(ax: "Axes", data: RunLife) -> None:
    last, steps = data.progress[-1]
    unit, length = time_axis(max(last, data.ends_s[1]))
    ax.plot(
        [0, data.healthy_s / length], [0, steps], color=MUTED, linestyle="--", linewidth=1,
        label="without failures",
    )  # fmt: skip
    times, done = zip(*data.progress, strict=True)
    ax.plot([at / length for at in times], done, color="#0b3c5d", label="the run of median length")
    look: Style = {"color": "#a3d0ea", "alpha": 0.5, "label": "10 to 90 % of the ends"}
    ax.axvspan(*(end / length for end in data.ends_s), **look)
    for number, cause in enumerate(_causes(data.events)):
        at = [time / length for time, name in data.events if name == cause]
        color = CAUSE_SHADES[number % len(CAUSE_SHADES)]
        level = -0.04 * steps * (number + 1)
        ax.plot(at, [level] * len(at), "|", color=color, markersize=7, label=f"{cause} fails")
    ax.set_xlim(0, 1.03 * max(last, data.ends_s[1]) / length)
    ax.set_xlabel(f"wall time [{unit}]", color=INK)
    ax.set_ylabel("steps", color=INK)
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 0 else "")
    canvas.simplify_axes(ax, grid="both")
    ax.legend(frameon=False, fontsize=8, loc="upper left")
    canvas.draw_title(ax, data.title, pad=8)


def _causes(events: Sequence[tuple[float, str]]) -> list[str]:
    """Return the causes of failures, the most frequent first."""
    names = [name for _, name in events]
    return sorted(set(names), key=lambda name: (-names.count(name), name))


def _draw_losses(ax: "Axes", losses: Sequence[tuple[str, float]]) -> None:
    longest = max((each for _, each in losses), default=1.0)
    unit, length = time_axis(longest)
    for row, (_, seconds) in enumerate(losses):
        ax.barh(row, seconds / length, BAR, color="#f2a541")
        canvas.draw_note(ax, duration(seconds), (seconds / length, row), (5, 0), va="center")
    ax.set_yticks(range(len(losses)), [name for name, _ in losses])
    ax.invert_yaxis()
    ax.set_xlim(0, 1.2 * longest / length)
    ax.set_xlabel(f"time lost in the mean of the runs [{unit}]", color=INK)
    canvas.simplify_axes(ax, rows=True)
