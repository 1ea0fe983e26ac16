"""The timeline of requests: when each waits, when its prompt is computed, and when it decodes."""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tpusim.report.figures import canvas
from tpusim.report.figures.palette import INK, FillStyle
from tpusim.report.figures.registry import register_serving_figure
from tpusim.results import PICO

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tpusim.serving import ServingResult

MOST_REQUESTS = 50
BAR = 0.72
PHASE_STYLES = {
    "waiting": FillStyle("#f7dba7", "////"),
    "prefill": FillStyle("#0b3c5d", text="white"),
    "decode": FillStyle("#a3d0ea"),
}


class RequestRows(NamedTuple):
    """What the figure shows.

    first: the number of the first request, from 0.
    moments_s: [request, 4]: sent, first step, first token, last token, after the first was sent.
    """

    title: str
    first: int
    moments_s: NDArray[np.floating[Any]]


def requests_data(
    result: "ServingResult", first: int | None = None, count: int = MOST_REQUESTS
) -> RequestRows:
    """Return the rows of the figure: requests that arrive one after the other.

    first: the number of the first of them; by default, so that the request with the longest TTFT is
        in the middle.
    count: of the requests.
    """
    from tpusim.serving.metrics import answered

    served = answered(result.served)
    times = (served.arrival_ps, served.scheduled_ps, served.first_ps, served.last_ps)
    moments = np.stack(times, axis=1).astype(np.int64)
    if not len(moments):
        return RequestRows(f"{result.title}: no request was answered", 0, moments * PICO)
    if first is None:
        longest = int(np.argmax(served.first_ps - served.arrival_ps))
        first = min(longest - count // 2, len(moments) - count)
    first = max(first, 0)
    rows = moments[first : first + count]
    last = first + len(rows)
    title = f"{result.title}: requests {first + 1:,} to {last:,} of {len(moments):,}"
    return RequestRows(title, first, (rows - moments[:, 0].min()) * PICO)


def plot_requests(data: RequestRows) -> "Axes":
    """Draw a row for each request on a new figure; return the axes."""
    from matplotlib.ticker import MaxNLocator

    count = len(data.moments_s)
    ax = canvas.new_figure(7.2, 1.4 + 0.12 * max(count, 4)).add_subplot()
    if not count:
        ax.set_axis_off()
        canvas.draw_title(ax, data.title)
        return ax
    rows = np.arange(count) + data.first + 1.0
    for place, style in enumerate(PHASE_STYLES.values()):
        left, right = data.moments_s[:, place], data.moments_s[:, place + 1]
        sides = np.stack([left, right, rows - BAR / 2, rows + BAR / 2], axis=1)
        look = style.arguments | {"linewidth": 0.2}
        canvas.draw_boxes(ax, sides[right > left], look)
    start, end = float(data.moments_s.min()), float(data.moments_s.max())
    ax.set_xlim(start - 0.01 * (end - start), end + 0.01 * (end - start))
    ax.set_ylim(data.first + count + 0.8, data.first + 0.2)
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("time since the first request [s]", color=INK)
    ax.set_ylabel("request, in order of arrival", color=INK)
    canvas.simplify_axes(ax)
    canvas.draw_legend(ax, PHASE_STYLES)
    canvas.draw_title(ax, data.title)
    return ax


register_serving_figure("requests", requests_data, plot_requests)
