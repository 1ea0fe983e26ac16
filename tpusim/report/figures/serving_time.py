"""A server over time: requests that wait, sequences that decode, and pages that are taken."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpusim.report.figures import canvas
from tpusim.report.figures.palette import INK, Style
from tpusim.report.figures.registry import register_serving_figure
from tpusim.results import PICO

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tpusim.serving import ServingResult

PARTS = 400
"""Equal parts of the time, of each of which a mean is drawn."""

_PANELS = (
    ("queue", "waiting", "#b3261e"),
    ("batch", "decoding", "#0b3c5d"),
    ("cache", "cache taken", "#328cc1"),
)


class ServerCurves(NamedTuple):
    """What the figure shows: means of each part of the time, of all replicas together.

    edges_s: of the parts, one more than there are.
    queue: requests that were sent and are in no step yet.
    batch: sequences that decode.
    cache: the fraction of the pages that are taken.
    limit: sequences that the engine lets run at a time.
    """

    title: str
    edges_s: NDArray[np.float64]
    queue: NDArray[np.float64]
    batch: NDArray[np.float64]
    cache: NDArray[np.float64]
    limit: int


def server_data(result: "ServingResult", parts: int = PARTS) -> ServerCurves:
    """Return the curves of a server.

    parts: of the time, each of which is a point.
    """
    from tpusim.serving.metrics import answered, window_ps

    served, policy = answered(result.served), result.policy
    start, end = window_ps(served)
    edges = np.linspace(start, max(end, start + 1), parts + 1)
    spans = served.spans
    ones = np.ones(len(served.arrival_ps))
    pages = policy.pages * policy.ranks * result.replicas
    return ServerCurves(
        title=f"{result.title}: the server over time",
        edges_s=(edges - start) * PICO,
        queue=_means(served.arrival_ps, served.scheduled_ps, ones, edges),
        batch=_means(spans.start_ps, spans.end_ps, spans.decodes, edges),
        cache=_means(spans.start_ps, spans.end_ps, spans.pages, edges) / max(pages, 1),
        limit=policy.max_num_seqs * policy.ranks * result.replicas,
    )


def _means(
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    levels: NDArray[np.int64] | NDArray[np.float64],
    edges: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the mean, over each part between two edges, of the sum of levels that last a while."""
    areas = _area(starts, levels, edges) - _area(ends, levels, edges)
    return np.asarray(np.diff(areas) / np.diff(edges)).clip(min=0.0)


def _area(
    times: NDArray[np.int64],
    steps: NDArray[np.int64] | NDArray[np.float64],
    edges: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the integral up to each edge of a curve that rises by `steps` at `times`."""
    order = np.argsort(times, kind="stable")
    when, rises = times[order].astype(float), steps[order].astype(float)
    heights = np.concatenate([[0.0], np.cumsum(rises)])
    moments = np.concatenate([[0.0], np.cumsum(rises * when)])
    so_far = np.searchsorted(when, edges, side="right")
    return np.asarray(heights[so_far] * edges - moments[so_far])


def plot_server(data: ServerCurves) -> "Axes":
    """Draw the curves below each other on a new figure; return the axes of the queue."""
    figure = canvas.new_figure(7.2, 5.2)
    grid = figure.add_gridspec(3, 1)
    first = None
    for row, (key, label, colour) in enumerate(_PANELS):
        ax = figure.add_subplot(grid[row])
        first = first or ax
        _draw_curve(ax, data.edges_s, getattr(data, key), colour)
        ax.set_ylabel(label, color=INK, fontsize=9)
        if key == "cache":
            ax.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g}%")
    assert first is not None
    ax.set_xlabel("time since the first request [s]", color=INK)
    canvas.draw_title(first, data.title, pad=8)
    return first


def _draw_curve(
    ax: "Axes", edges: NDArray[np.float64], values: NDArray[np.float64], colour: str
) -> None:
    look: Style = {"color": colour, "linewidth": 1.0, "drawstyle": "steps-post"}
    heights = np.append(values, values[-1:])
    ax.plot(edges, heights, **look)
    ax.fill_between(edges, heights, step="post", color=colour, alpha=0.15, linewidth=0)
    ax.set_xlim(edges[0], edges[-1])
    ax.set_ylim(0, 1.1 * max(float(values.max(initial=0.0)), 1e-3))
    canvas.simplify_axes(ax, grid="both")


register_serving_figure("server", server_data, plot_server)
