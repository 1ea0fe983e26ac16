"""Figures as bytes, the same for the same result: no dates, no random identifiers."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from tpusim.base.plain_text import plain
from tpusim.report.figures.breakdown import breakdown_title
from tpusim.report.figures.canvas import for_files
from tpusim.report.figures.registry import FIGURES, SERVING_FIGURES
from tpusim.results import Result

if TYPE_CHECKING:
    from tpusim.serving import ServingResult

FIGURE_DPI = 160
PNG_COMPRESSION = 2
"""The zlib level of a PNG: the usual 6 makes it a seventh smaller and takes half as long again."""

PATH_DATA = re.compile(r' d="([^"]*)"')
DIGITS = re.compile(r"(\d{3,}\.\d|\d\.\d\d)\d+")
"""The commands of a path of an SVG, and a coordinate with more digits than are visible: more than
one beyond hundreds of points, or two below."""


def figure_bytes(result: Result) -> dict[str, bytes]:
    """Render each figure as PNG and SVG, by file name, with the breakdown's title as metadata."""
    title = breakdown_title(result)
    with _look():
        return {
            f"{name}.{kind}": content
            for name, figure in draw_figures(result)
            for kind, content in _render(figure, title)
        }


def draw_figures(result: Result) -> Iterator[tuple[str, Figure]]:
    """Draw each registered figure that applies to a result, in the order of their names."""
    for _, entry in sorted(FIGURES.items()):
        if entry.applies(result):
            axes = entry.plot(result)
            figure = (axes[0] if isinstance(axes, Sequence) else axes).get_figure(root=True)
            assert figure is not None
            yield entry.name, figure


def serving_figure_bytes(result: "ServingResult") -> dict[str, bytes]:
    """Render each figure of a simulated server as PNG and SVG, by file name."""
    files: dict[str, bytes] = {}
    for name, entry in sorted(SERVING_FIGURES.items()):
        if (data := entry.data(result)) is not None:
            files |= figure_files(name, partial(entry.plot, data), result.title)
    return files


def _render(figure: Figure, title: str) -> Iterator[tuple[str, bytes]]:
    """Yield PNG and SVG of a figure; the layout is computed once.

    A canvas that prints draws once, whereas `savefig` draws twice.
    """
    yield "png", _png(figure, title)
    figure.set_layout_engine("none")
    yield "svg", _svg(figure, title)


def png_bytes(plot: Callable[[], Axes], title: str) -> bytes:
    """Render the figure that `plot` draws as PNG, with a title as metadata."""
    with _look():
        figure = plot().get_figure(root=True)
        assert figure is not None
        return _png(figure, title)


def svg_bytes(plot: Callable[[], Axes], title: str) -> bytes:
    """Render the figure that `plot` draws as SVG, with a title as metadata."""
    with _look():
        figure = plot().get_figure(root=True)
        assert figure is not None
        return _svg(figure, title)


def figure_files(name: str, plot: Callable[[], Axes], title: str) -> dict[str, bytes]:
    """Render the figure that `plot` draws as the files `name.png` and `name.svg`."""
    return {f"{name}.png": png_bytes(plot, title), f"{name}.svg": svg_bytes(plot, title)}


@contextmanager
def _look() -> Iterator[None]:
    """Draw figures for files with settings of their own, whatever a user's matplotlibrc says."""
    own = {"svg.hashsalt": "tpusim", "font.family": "DejaVu Sans", "hatch.linewidth": 0.5}
    with for_files(), style.context(["default", own]):
        yield


def _png(figure: Figure, title: str) -> bytes:
    figure.set_dpi(FIGURE_DPI)
    png = BytesIO()
    metadata = {"Title": plain(title), "Software": None}
    packed = {"compress_level": PNG_COMPRESSION}
    FigureCanvasAgg(figure).print_png(png, metadata=metadata, pil_kwargs=packed)  # type: ignore[no-untyped-call]
    return png.getvalue()


def _svg(figure: Figure, title: str) -> bytes:
    svg = BytesIO()
    FigureCanvasSVG(figure).print_svg(svg, metadata={"Title": plain(title), "Date": None})  # type: ignore[no-untyped-call]
    return PATH_DATA.sub(_shortened, svg.getvalue().decode()).encode()


def _shortened(path: re.Match[str]) -> str:
    """Return the commands of a path without what nobody sees, which halves large drawings."""
    commands = DIGITS.sub(r"\1", path[1]).replace(" \n", "")
    return f' d="{commands}"'
