"""Figures as bytes, the same for the same result: no dates, no random identifiers."""

from io import BytesIO

import matplotlib
from matplotlib.figure import Figure

from tpusim.report.breakdown import breakdown_data, draw_breakdown, figure_for, title
from tpusim.result import Result

DPI = 160


def figure_bytes(result: Result) -> dict[str, bytes]:
    """`breakdown.png` and `breakdown.svg`; both carry the title of the figure as metadata."""
    bars, head = breakdown_data(result), title(result)
    with matplotlib.rc_context({"svg.hashsalt": "tpusim", "font.family": "DejaVu Sans"}):
        figure = figure_for(bars)
        draw_breakdown(figure.add_subplot(), bars, head)
        return {
            "breakdown.png": _saved(figure, "png", {"Title": head, "Software": None}),
            "breakdown.svg": _saved(figure, "svg", {"Title": head, "Date": None}),
        }


def _saved(figure: Figure, kind: str, metadata: dict[str, str | None]) -> bytes:
    buffer = BytesIO()
    figure.savefig(buffer, format=kind, dpi=DPI, metadata=metadata)
    return buffer.getvalue()
