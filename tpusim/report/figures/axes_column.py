"""The layout of axes in their figure: margins measured once from what surrounds the axes."""

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.layout_engine import LayoutEngine

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AXES_PADDING = 3.0
"""Points around axes and their texts."""


class AxesColumn(LayoutEngine):
    """Axes one below the other, each as large as its texts permit.

    The layout of matplotlib's constrained layout for such a column, in one pass instead of two:
    what surrounds the axes here does not depend on their size, and measuring it is what takes
    time. Heights have the ratios of the grid.
    """

    _adjust_compatible = True
    _colorbar_gridspec = False

    def execute(self, fig: "Figure") -> None:
        """Position the axes of a figure."""
        column = [(ax, spec) for ax in fig.axes if (spec := ax.get_subplotspec()) is not None]
        if not column:
            return
        wide, high = AXES_PADDING / 72 / np.array(fig.get_size_inches())
        edges = [_margins(ax, fig) for ax, _ in column]
        left, right = (max(edge[side] for edge in edges) + wide for side in (0, 1))
        ratios = np.array(column[0][1].get_gridspec().get_height_ratios(), dtype=float)
        available = 1 - sum(below + above + 2 * high for _, _, below, above in edges)
        top = 1.0
        for (ax, _), ratio, (_, _, below, above) in zip(column, ratios, edges, strict=True):
            height = available * ratio / ratios.sum()
            low = top - high - above - height
            ax.set_position((left, low, 1 - left - right, height))
            top = low - below - high


def settle_layout(fig: "Figure") -> None:
    """Lay out a figure once for all of its files.

    The labels of its axes then have fixed positions, so that no file measures all ticks again.
    """
    layout = fig.get_layout_engine()
    if layout is None:
        return
    before = [ax.bbox.frozen() for ax in fig.axes]
    layout.execute(fig)
    fig.set_layout_engine("none")
    for ax, box in zip(fig.axes, before, strict=True):
        (x, _), (_, y) = ax.yaxis.label.get_position(), ax.xaxis.label.get_position()
        left, bottom = ax.yaxis.label_position == "left", ax.xaxis.label_position == "bottom"
        beside = (x - box.x0) / ax.bbox.width if left else 1 + (x - box.x1) / ax.bbox.width
        below = (y - box.y0) / ax.bbox.height if bottom else 1 + (y - box.y1) / ax.bbox.height
        ax.xaxis.set_label_coords(0.5, below)
        ax.yaxis.set_label_coords(beside, 0.5)


def _margins(ax: "Axes", fig: "Figure") -> tuple[float, float, float, float]:
    """Return the margins left, right, below and above of axes, as fractions of the figure."""
    box = ax.get_tightbbox(for_layout_only=True)
    at = ax.get_position(original=True)
    taken = at if box is None else box.transformed(fig.transFigure.inverted())
    return at.x0 - taken.x0, taken.x1 - at.x1, at.y0 - taken.y0, taken.y1 - at.y1
