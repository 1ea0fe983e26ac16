"""Figures as bytes, the same for the same result: no dates, no random identifiers."""

from collections.abc import Iterator
from io import BytesIO

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from tpusim.report.axes_matrix import plot_axes
from tpusim.report.breakdown import plot_breakdown, title
from tpusim.report.memory import plot_memory
from tpusim.report.pipeline import plot_pipeline
from tpusim.report.roofline import plot_roofline
from tpusim.report.timeline import plot_timeline
from tpusim.report.torus_heatmap import plot_torus
from tpusim.report.utilisation import plot_utilisation
from tpusim.result import Result

DPI = 160
PACKING = 2
"""How hard a PNG is packed: 6 is usual, a seventh smaller, and takes half as long again."""


def figure_bytes(result: Result) -> dict[str, bytes]:
    """Each figure as PNG and as SVG, by file name; all carry the result's title as metadata."""
    head = title(result)
    with matplotlib.rc_context(
        {"svg.hashsalt": "tpusim", "font.family": "DejaVu Sans", "hatch.linewidth": 0.5}
    ):
        return {
            f"{name}.{kind}": content
            for name, figure in _figures(result)
            for kind, content in _both(figure, head)
        }


def _figures(result: Result) -> Iterator[tuple[str, Figure]]:
    axes = {
        "breakdown": plot_breakdown(result),
        "timeline": plot_timeline(result)[0],
        "memory": plot_memory(result),
        "utilisation": plot_utilisation(result),
        "torus": plot_torus(result),
        "axes": plot_axes(result),
        "roofline": plot_roofline(result),
    }
    if result.pipelined:
        axes["pipeline"] = plot_pipeline(result.pipelined)
    for name, ax in axes.items():
        figure = ax.get_figure(root=True)
        assert figure is not None
        yield name, figure


def _both(figure: Figure, head: str) -> Iterator[tuple[str, bytes]]:
    """The same layout twice: it is worked out once.

    A canvas that prints draws once, where `savefig` draws twice.
    """
    figure.set_dpi(DPI)
    png, svg = BytesIO(), BytesIO()
    said = {"Title": head, "Software": None}
    packed = {"compress_level": PACKING}
    FigureCanvasAgg(figure).print_png(png, metadata=said, pil_kwargs=packed)  # type: ignore[no-untyped-call]
    yield "png", png.getvalue()
    figure.set_layout_engine("none")
    FigureCanvasSVG(figure).print_svg(svg, metadata={"Title": head, "Date": None})  # type: ignore[no-untyped-call]
    yield "svg", svg.getvalue()
