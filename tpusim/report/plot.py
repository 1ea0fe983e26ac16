"""Figures of results and tables, for notebooks and scripts: `ts.plot.breakdown(result)`.

Each function has its data beside it (`breakdown_data(result)`), draws on `ax` if it is given, and
returns the axes, whose `figure` is that of matplotlib. Without `ax` it makes a figure of its own,
which IPython shows at the end of the cell.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from tpusim.base.errors import TpusimError
from tpusim.report.figures.axes_matrix import axes_data, plot_axes
from tpusim.report.figures.breakdown import breakdown_data, plot_breakdown
from tpusim.report.figures.canvas import shown_figures
from tpusim.report.figures.memory import memory_data, plot_memory
from tpusim.report.figures.pipeline import pipeline_data, plot_pipeline
from tpusim.report.figures.roofline import plot_roofline, roofline_data
from tpusim.report.figures.scaling import plot_scaling, scaling_data
from tpusim.report.figures.sweep_heatmap import mesh_heatmap_data, plot_mesh_heatmap
from tpusim.report.figures.sweep_ranking import PLANS_RANKED, plot_ranking, ranking_data
from tpusim.report.figures.time_windows import timeline_data
from tpusim.report.figures.timeline import plot_timeline
from tpusim.report.figures.torus_heatmap import plot_torus
from tpusim.report.figures.torus_use import torus_data
from tpusim.report.figures.utilisation import plot_utilisation, utilisation_data
from tpusim.results import Result

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

Given = ParamSpec("Given")
Drawn = TypeVar("Drawn")


def _shown(draw: Callable[Given, Drawn]) -> Callable[Given, Drawn]:
    """Let IPython show the figures that `draw` makes."""

    @wraps(draw)
    def drawn(*args: Given.args, **kwargs: Given.kwargs) -> Drawn:
        with shown_figures():
            return draw(*args, **kwargs)

    return drawn


def _checked(what: str, value: Any) -> Result:
    """Return a result. Raise TpusimError for anything else."""
    if not isinstance(value, Result):
        raise TpusimError(
            f"ts.plot.{what} draws a result, not a {type(value).__name__}; write "
            f"ts.plot.{what}(ts.simulate(...))"
        )
    return value


@_shown
def breakdown(result: Result, *, ax: "Axes | None" = None) -> "Axes":
    """Draw where the step goes: a bar for each kind of work and of exposed communication."""
    return plot_breakdown(_checked("breakdown", result), ax)


@_shown
def timeline(result: Result, *, axes: "Sequence[Axes] | None" = None) -> "tuple[Axes, ...]":
    """Draw an iteration of each loop: the core, and the links below it.

    axes: one for each window of `timeline_data`.
    """
    return plot_timeline(_checked("timeline", result), axes)


@_shown
def memory(result: Result, *, ax: "Axes | None" = None) -> "Axes":
    """Draw the HBM of a device over the step."""
    return plot_memory(_checked("memory", result), ax)


@_shown
def utilisation(result: Result, *, ax: "Axes | None" = None) -> "Axes":
    """Draw the use of the core and of each link over the step."""
    return plot_utilisation(_checked("utilisation", result), ax)


@_shown
def roofline(result: Result, *, ax: "Axes | None" = None) -> "Axes":
    """Draw FLOP/s over arithmetic intensity of the largest operations, below the chip's roofs."""
    return plot_roofline(_checked("roofline", result), ax)


@_shown
def torus(result: Result, *, ax: "Axes | None" = None) -> "Axes":
    """Draw the load of each link of the torus."""
    return plot_torus(_checked("torus", result), ax)


@_shown
def axes(result: Result, *, ax: "Axes | None" = None) -> "Axes":
    """Draw the bytes that each mesh axis sends over each dimension of the torus."""
    return plot_axes(_checked("axes", result), ax)


@_shown
def pipeline(result: Result, *, ax: "Axes | None" = None) -> "Axes":
    """Draw the slots of a pipeline's stages over the step."""
    return plot_pipeline(_checked("pipeline", result), ax)


@_shown
def ranking(table: "DataFrame", *, count: int = PLANS_RANKED, ax: "Axes | None" = None) -> "Axes":
    """Draw the fastest plans of a sweep that fit, each as a bar of its breakdown.

    table: as `ts.sweep` returns it.
    count: plans to draw.
    """
    return plot_ranking(ranking_data(table, count), ax)


@_shown
def mesh_heatmap(
    table: "DataFrame", x: str = "fsdp", y: str = "tensor", *, ax: "Axes | None" = None
) -> "Axes":
    """Draw the MFU of a sweep's best plan for each size of two mesh axes.

    table: as `ts.sweep` returns it. Raise TpusimError if it has no such axis.
    """
    return plot_mesh_heatmap(mesh_heatmap_data(table, x, y), ax)


@_shown
def scaling(table: "DataFrame", *, ax: "Axes | None" = None) -> "Axes":
    """Draw the MFU of scaling curves over chips.

    table: `ts.scaling(...).table`.
    """
    return plot_scaling(scaling_data(table), ax)
