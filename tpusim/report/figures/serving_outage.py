"""The loss of a replica: requests that wait and TTFT over time, beside the server without it."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpusim.report.figures import canvas
from tpusim.report.figures.palette import ALARM, INK, MUTED, SMALL, Style
from tpusim.report.figures.registry import register_serving_figure
from tpusim.results import PICO

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tpusim.serving import ServingResult
    from tpusim.serving.metrics import Seconds

MOST_POINTS = 4000
"""Points of a curve, each the most of several, and requests, some of which are left out."""

_SHADE = "#f7dba7"
_LOOKS: dict[str, Style] = {
    "with the loss": {"color": ALARM, "linewidth": 1.0},
    "without": {"color": MUTED, "linewidth": 1.0},
}


class OutageCurve(NamedTuple):
    """A server with the loss or without it; times in seconds after the first request.

    queue: times, and the most requests that wait from then on.
    ttft: when each request was sent, and its TTFT.
    """

    queue: "tuple[Seconds, NDArray[np.int64]]"
    ttft: "tuple[Seconds, Seconds]"


class OutageCurves(NamedTuple):
    """What the figure shows: both servers, and when the replica is lost, is back, and has drained.

    curves: by the words of the legend.
    """

    title: str
    curves: dict[str, OutageCurve]
    times_s: tuple[float, float, float]


def outage_data(result: "ServingResult") -> OutageCurves | None:
    """Return the curves of a server that loses a replica; None for one that loses none."""
    from tpusim.serving.metrics import ttft
    from tpusim.serving.replica_loss import Queue

    if (loss := result.loss) is None:
        return None
    start = int(loss.calm.arrival_ps.min())
    curves = {}
    for name, served in zip(_LOOKS, (loss.served, loss.calm), strict=True):
        queue = Queue.of(served, loss.lost_ps)
        few = np.arange(0, len(queue.times_ps), len(queue.times_ps) // MOST_POINTS + 1)
        some = slice(None, None, len(served.arrival_ps) // MOST_POINTS + 1)
        curves[name] = OutageCurve(
            ((queue.times_ps[few] - start) * PICO, np.maximum.reduceat(queue.waiting, few)),
            ((served.arrival_ps[some] - start) * PICO, ttft(served)[some]),
        )
    times = [(each - start) * PICO for each in (loss.lost_ps, loss.back_ps, loss.drained_ps)]
    return OutageCurves(
        f"{result.title}: a replica is lost", curves, (times[0], times[1], times[2])
    )


def plot_outage(data: OutageCurves) -> "Axes":
    """Draw the queue above the TTFT, with the outage shaded; return the axes of the queue."""
    figure = canvas.new_figure(7.2, 4.6)
    grid = figure.add_gridspec(2, 1)
    upper, lower = (figure.add_subplot(grid[row]) for row in range(2))
    longest = max(float(curve.ttft[1].max(initial=0.0)) for curve in data.curves.values())
    scale, unit = canvas.time_scale(longest)
    for name, curve in reversed(data.curves.items()):
        upper.plot(*curve.queue, drawstyle="steps-post", label=name, **_LOOKS[name])
        dots: Style = {"linestyle": "", "marker": ".", "markersize": 2}
        lower.plot(curve.ttft[0], curve.ttft[1] * scale, **_LOOKS[name] | dots)
    lost, back, drained = data.times_s
    end = max(float(curve.queue[0].max(initial=drained)) for curve in data.curves.values())
    for ax in (upper, lower):
        ax.axvspan(lost, back, color=_SHADE, alpha=0.5, linewidth=0, zorder=0, label="outage")
        ax.axvline(drained, color=INK, linewidth=0.8, linestyle=":", label="drained")
        ax.set_xlim(0, 1.02 * end)
        ax.set_ylim(0, None)
        canvas.simplify_axes(ax, grid="both")
    upper.set_ylabel("waiting requests", color=INK)
    lower.set_ylabel(f"TTFT [{unit}]", color=INK)
    lower.set_xlabel("time since the first request [s]", color=INK)
    upper.legend(frameon=False, fontsize=SMALL, loc="upper left", labelcolor=INK)
    canvas.draw_title(upper, data.title, pad=8)
    return upper


register_serving_figure("outage", outage_data, plot_outage)
