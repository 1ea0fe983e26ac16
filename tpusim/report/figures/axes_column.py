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


def _margins(ax: "Axes", fig: "Figure") -> tuple[float, float, float, float]:
    """Return the margins left, right, below and above of axes, as fractions of the figure."""
    box = ax.get_tightbbox(for_layout_only=True)
    at = ax.get_position(original=True)
    taken = at if box is None else box.transformed(fig.transFigure.inverted())
    return at.x0 - taken.x0, taken.x1 - at.x1, at.y0 - taken.y0, taken.y1 - at.y1
