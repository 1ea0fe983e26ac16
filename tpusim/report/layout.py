"""The room that axes have in their figure, worked out from one look at what stands around them."""

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.layout_engine import LayoutEngine

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAD = 3.0
"""Points around axes and what belongs to them."""


class Column(LayoutEngine):
    """Axes one below the other, each as large as its texts leave room for.

    What matplotlib's constrained layout makes of such a column, in one pass of its two: what stands
    around the axes here does not depend on their size, and measuring it is what takes time. Heights
    have the ratios of the grid.
    """

    _adjust_compatible = True
    _colorbar_gridspec = False

    def execute(self, fig: "Figure") -> None:
        """Place the axes of a figure."""
        column = [(ax, spec) for ax in fig.axes if (spec := ax.get_subplotspec()) is not None]
        if not column:
            return
        wide, high = PAD / 72 / np.array(fig.get_size_inches())
        edges = [_edges(ax, fig) for ax, _ in column]
        left, right = (max(edge[side] for edge in edges) + wide for side in (0, 1))
        ratios = np.array(column[0][1].get_gridspec().get_height_ratios(), dtype=float)
        room = 1 - sum(below + above + 2 * high for _, _, below, above in edges)
        top = 1.0
        for (ax, _), ratio, (_, _, below, above) in zip(column, ratios, edges, strict=True):
            height = room * ratio / ratios.sum()
            low = top - high - above - height
            ax.set_position((left, low, 1 - left - right, height))
            top = low - below - high


def _edges(ax: "Axes", fig: "Figure") -> tuple[float, float, float, float]:
    """What stands left of axes, right of them, below and above, as shares of the figure."""
    box = ax.get_tightbbox(for_layout_only=True)
    at = ax.get_position(original=True)
    taken = at if box is None else box.transformed(fig.transFigure.inverted())
    return at.x0 - taken.x0, taken.x1 - at.x1, at.y0 - taken.y0, taken.y1 - at.y1
