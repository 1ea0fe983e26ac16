"""Figures of results and tables, for notebooks and scripts: `ts.plot.breakdown(result)`.

Each function has its data beside it (`breakdown_data(result)`), draws on `ax` if it is given, and
returns the axes, whose `figure` is that of matplotlib. Without `ax` it makes a figure of its own,
which IPython shows at the end of the cell.
"""

from typing import TYPE_CHECKING, Any

from tpusim.base.errors import nearest
from tpusim.report.figures.axes_matrix import axes_data
from tpusim.report.figures.axes_matrix import plot_axes as axes
from tpusim.report.figures.breakdown import breakdown_data
from tpusim.report.figures.breakdown import plot_breakdown as breakdown
from tpusim.report.figures.memory import memory_data
from tpusim.report.figures.memory import plot_memory as memory
from tpusim.report.figures.pipeline import pipeline_data
from tpusim.report.figures.pipeline import plot_pipeline as pipeline
from tpusim.report.figures.roofline import plot_roofline as roofline
from tpusim.report.figures.roofline import roofline_data
from tpusim.report.figures.scaling import plot_scaling, scaling_data
from tpusim.report.figures.sweep_heatmap import mesh_heatmap_data, plot_mesh_heatmap
from tpusim.report.figures.sweep_ranking import PLANS_RANKED, plot_ranking, ranking_data
from tpusim.report.figures.time_windows import timeline_data
from tpusim.report.figures.timeline import plot_timeline as timeline
from tpusim.report.figures.torus_heatmap import plot_torus as torus
from tpusim.report.figures.torus_use import torus_data
from tpusim.report.figures.utilisation import plot_utilisation as utilisation
from tpusim.report.figures.utilisation import utilisation_data

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

__all__ = [
    "axes",
    "axes_data",
    "breakdown",
    "breakdown_data",
    "memory",
    "memory_data",
    "mesh_heatmap",
    "mesh_heatmap_data",
    "pipeline",
    "pipeline_data",
    "ranking",
    "ranking_data",
    "roofline",
    "roofline_data",
    "scaling",
    "scaling_data",
    "timeline",
    "timeline_data",
    "torus",
    "torus_data",
    "utilisation",
    "utilisation_data",
]


def ranking(table: "DataFrame", *, count: int = PLANS_RANKED, ax: "Axes | None" = None) -> "Axes":
    """Draw the fastest plans of a sweep that fit, each as a bar of its breakdown.

    table: as `ts.sweep` returns it.
    count: plans to draw.
    """
    return plot_ranking(ranking_data(table, count), ax)


def mesh_heatmap(
    table: "DataFrame", x: str = "fsdp", y: str = "tensor", *, ax: "Axes | None" = None
) -> "Axes":
    """Draw the MFU of a sweep's best plan for each size of two mesh axes.

    table: as `ts.sweep` returns it. Raise TpusimError if it has no such axis.
    """
    return plot_mesh_heatmap(mesh_heatmap_data(table, x, y), ax)


def scaling(table: "DataFrame", *, ax: "Axes | None" = None) -> "Axes":
    """Draw the MFU of scaling curves over chips.

    table: `ts.scaling(...).table`.
    """
    return plot_scaling(scaling_data(table), ax)


if not TYPE_CHECKING:  # so that a type checker knows what there is

    def __getattr__(name: str) -> Any:
        """Raise AttributeError with the figure that is meant, or with all there are."""
        raise AttributeError(f"ts.plot has no {name!r}; {nearest(name, __all__)}")
