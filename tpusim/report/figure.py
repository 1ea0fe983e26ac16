"""Figures as bytes, the same for the same result: no dates, no random identifiers."""

from collections.abc import Iterator
from io import BytesIO

import matplotlib
from matplotlib.figure import Figure

from tpusim.report.breakdown import plot_breakdown, title
from tpusim.report.memory import plot_memory
from tpusim.report.roofline import plot_roofline
from tpusim.report.timeline import plot_timeline
from tpusim.report.utilisation import plot_utilisation
from tpusim.result import Result

DPI = 160


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
        "roofline": plot_roofline(result),
    }
    for name, ax in axes.items():
        figure = ax.get_figure(root=True)
        assert figure is not None
        yield name, figure


def _both(figure: Figure, head: str) -> Iterator[tuple[str, bytes]]:
    """The same layout twice: it is worked out once."""
    yield "png", _saved(figure, "png", {"Title": head, "Software": None})
    figure.set_layout_engine("none")
    yield "svg", _saved(figure, "svg", {"Title": head, "Date": None})


def _saved(figure: Figure, kind: str, metadata: dict[str, str | None]) -> bytes:
    buffer = BytesIO()
    figure.savefig(buffer, format=kind, dpi=DPI, metadata=metadata)
    return buffer.getvalue()
