"""Latency against load: several runs of a server that differ in how many requests arrive."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tpusim.base.errors import PlanError
from tpusim.report.figures import canvas
from tpusim.report.figures.palette import INK, SMALL, Style
from tpusim.serving import ServingResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LOOKS: dict[str, Style] = {
    "p50": {"color": "#0b3c5d", "marker": "o"},
    "p99": {"color": "#328cc1", "marker": "s", "linestyle": "--"},
}
_SHADE = "#f7dba7"


class LoadPoint(NamedTuple):
    """One run of the figure. Times in seconds.

    load: requests that arrive in a second, or users of a closed loop.
    ttft, tpot: the median and the 99th percentile.
    output_tokens_per_s: of all replicas.
    """

    load: float
    saturated: bool
    ttft: tuple[float, float]
    tpot: tuple[float, float]
    output_tokens_per_s: float


class LoadCurves(NamedTuple):
    """What the figure shows: runs in the order of their load.

    unit: of the load, in words.
    """

    title: str
    unit: str
    points: tuple[LoadPoint, ...]


def load_data(results: Sequence[ServingResult]) -> LoadCurves:
    """Return the curves of several runs. Raise PlanError without any, or for open and closed loops.

    results: of one server, each with another load.
    """
    closed = {bool(result.traffic.users) for result in results}
    if len(closed) != 1:
        fault = "runs of open and of closed loops" if closed else "no run"
        raise PlanError(f"the figure of the load is given {fault}; give runs of one kind")
    unit = "concurrent users" if closed.pop() else "requests/s that arrive"
    points = tuple(sorted((_point(result) for result in results), key=lambda each: each.load))
    return LoadCurves(f"{results[0].title}: latency against load", unit, points)


def _point(result: ServingResult) -> LoadPoint:
    users = result.traffic.users
    times = result.metrics.times
    return LoadPoint(
        load=float(users) if users else result.load.offered,
        saturated=result.saturated,
        ttft=(times["ttft"].p50, times["ttft"].p99),
        tpot=(times["tpot"].p50, times["tpot"].p99),
        output_tokens_per_s=result.metrics.numbers["output_tokens_per_s"],
    )


def plot_load(data: LoadCurves) -> "Axes":
    """Draw TTFT, TPOT and throughput over the load on a new figure; return the axes of TTFT.

    No TTFT is drawn where the server is saturated, and these loads are shaded.
    """
    figure = canvas.new_figure(7.2, 6.0)
    grid = figure.add_gridspec(3, 1)
    upper, middle, lower = (figure.add_subplot(grid[row]) for row in range(3))
    steady = [point for point in data.points if not point.saturated]
    _draw_times(upper, [(each.load, each.ttft) for each in steady], "TTFT")
    _draw_times(middle, [(each.load, each.tpot) for each in data.points], "TPOT")
    rates = [(each.load, each.output_tokens_per_s) for each in data.points]
    lower.plot(*zip(*rates, strict=True), **_LOOKS["p50"])
    lower.set_ylabel("output tokens/s", color=INK)
    lower.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    lower.set_xlabel(data.unit, color=INK)
    for ax in (upper, middle, lower):
        _shade(ax, data)
        ax.set_ylim(0, 1.08 * ax.get_ylim()[1])
        canvas.simplify_axes(ax, grid="both")
    upper.legend(frameon=False, fontsize=SMALL, loc="upper left", labelcolor=INK)
    canvas.draw_title(upper, data.title, pad=8)
    return upper


def _draw_times(ax: "Axes", rows: Sequence[tuple[float, tuple[float, float]]], name: str) -> None:
    """Draw the two percentiles of a time."""
    longest = max((max(times) for _, times in rows), default=1.0)
    scale, unit = canvas.time_scale(longest)
    for place, (label, look) in enumerate(_LOOKS.items()):
        loads = [load for load, _ in rows]
        ax.plot(loads, [times[place] * scale for _, times in rows], label=label, **look)
    ax.set_ylabel(f"{name} [{unit}]", color=INK)


def _shade(ax: "Axes", data: LoadCurves) -> None:
    """Shade the loads from the first at which the server is saturated."""
    loads = [point.load for point in data.points]
    room = 0.03 * (loads[-1] - loads[0]) or 0.5
    left, right = loads[0] - room, loads[-1] + room
    ax.set_xlim(left, right)
    over = [point.load for point in data.points if point.saturated]
    if over:
        below = max((load for load in loads if load < over[0]), default=left)
        begin = (below + over[0]) / 2
        ax.axvspan(begin, right, color=_SHADE, alpha=0.4, linewidth=0, label="saturated", zorder=0)
