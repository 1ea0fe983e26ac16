"""Helpers shared by the figures: plain axes, titles, legends, notes and boxes."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tpusim.base.plain_text import plain, visible
from tpusim.report.figures.palette import (
    GRID_LINE,
    HEAT_SHADES,
    INK,
    MUTED,
    SMALL,
    FillStyle,
    Style,
    styles,
)
from tpusim.results import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation
    from numpy.typing import ArrayLike

LETTERS_PER_INCH, NARROW_LETTERS_PER_INCH = 11.0, 8.5
"""Letters of a title that fit in an inch of a figure, allowing for what is left of the axes: ticks,
or the wider names of rows."""

LONGEST_TITLE, LONGEST_LABEL = 160, 40
"""Letters of a title, and of a name beside or below axes."""

ROOMY_LEGEND = 6
"""Legend entries that fit in a row at normal spacing; longer legends are set tighter."""


_FOR_FILES: ContextVar[bool] = ContextVar("_FOR_FILES", default=False)
"""True while figures are drawn for files alone."""


@contextmanager
def for_files() -> Iterator[None]:
    """Keep new figures from IPython, which shows others at the end of a cell."""
    token = _FOR_FILES.set(True)
    try:
        yield
    finally:
        _FOR_FILES.reset(token)


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure, which IPython shows at the end of a cell; sizes in inches."""
    from matplotlib.figure import Figure

    from tpusim.report.figures.axes_column import AxesColumn

    shell = sys.modules.get("IPython")
    if shell is not None and shell.get_ipython() is not None and not _FOR_FILES.get():
        from matplotlib import pyplot

        return pyplot.figure(figsize=(width, height), layout=AxesColumn())
    return Figure(figsize=(width, height), layout=AxesColumn())


def draw_title(ax: "Axes", text: str, pad: float = 26, letters: float = LETTERS_PER_INCH) -> None:
    """Draw the title above the legend, wrapped where it is too long for the figure."""
    width = int(ax.get_figure(root=True).get_figwidth() * letters)  # type: ignore[union-attr]
    lines = "\n".join(wrap(plain(text, LONGEST_TITLE), width))
    ax.set_title(lines, loc="left", y=1.0, fontsize=11, color=INK, pad=pad, parse_math=False)


def draw_note(
    ax: "Axes", text: str, at: tuple[float, float], shift: tuple[float, float], **style: Any
) -> "Annotation":
    """Write a text `shift` points from a position: small and in ink, unless `style` differs."""
    style = {"fontsize": SMALL, "color": INK, **style}
    text = "\n".join(map(visible, text.split("\n")))
    return ax.annotate(text, at, xytext=shift, textcoords="offset points", **style)


def draw_table(ax: "Axes", rows: Sequence[Sequence[str]], sides: str) -> None:
    """Draw a table to the right of the axes.

    The columns are one monospaced text each for head and body, as texts are what takes time.

    rows: the cells; the first row is the head.
    sides: the alignment of each column, `<` or `>`.
    """
    rows = [[plain(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)
        )
        for row in rows
    ]
    font: Style = {"family": "DejaVu Sans Mono", "fontsize": SMALL - 0.5, "linespacing": 1.8}
    style: Style = {"xycoords": "axes fraction", "va": "top", "parse_math": False, **font}
    for text, colour in ((lines[0], MUTED), ("\n".join(["", *lines[1:]]), INK)):
        draw_note(ax, text, (1, 1), (14, 0), color=colour, **style)


def device_title(result: Result) -> str:
    """Return model and slice, and the stage of the device that a figure shows, if any."""
    return f"{result.title}{f', stage {result.lane}' if len(result.programs) > 1 else ''}"


def simplify_axes(ax: "Axes", *, rows: bool = False, grid: Literal["x", "y", "both"] = "x") -> None:
    """Leave the axes a grid and the lower and left spine; with `rows`, names replace the latter."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(MUTED)
    ax.tick_params(color=MUTED, labelcolor=INK, labelsize=9)
    if rows:
        ax.spines["left"].set_visible(False)
        ax.tick_params(axis="y", length=0)
    ax.grid(True, axis=grid, color=GRID_LINE, linewidth=0.6)
    ax.set_axisbelow(True)


def draw_boxes(ax: "Axes", sides: "ArrayLike", look: Style) -> None:
    """Draw boxes of one look as a single shape.

    Hatching is drawn anew for every shape, and single patches of a long step would take seconds.

    sides: [box, side] with left, right, lower and upper side, in data coordinates.
    """
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    left, right, low, high = np.asarray(sides, dtype=float).T
    corners = [(left, low), (left, high), (right, high), (right, low), (left, low)]
    points = np.stack([np.stack(corner, axis=1) for corner in corners], axis=1).reshape(-1, 2)
    codes = [Path.MOVETO, *[Path.LINETO] * 3, Path.CLOSEPOLY] * len(left)
    ax.add_artist(PathPatch(Path(points, codes), **look))


def draw_stack(ax: "Axes", row: int, height: float, parts: Iterable[tuple[float, Style]]) -> float:
    """Draw bars of a row one after another, each by its length and look; return their end."""
    left = 0.0
    for length, look in parts:
        ax.barh(row, length, height, left, **look)
        left += length
    return left


def draw_legend(ax: "Axes", entries: Mapping[str, FillStyle], lift: float = 0) -> None:
    """Draw a row of entries below the title, `lift` points above the axes."""
    from matplotlib.patches import Patch
    from matplotlib.transforms import ScaledTranslation

    handles = [
        Patch(**style.arguments, label=plain(label, LONGEST_LABEL))
        for label, style in entries.items()
    ]
    roomy: Style = {"fontsize": 9, "handlelength": 1.6, "columnspacing": 1.4}
    crowded: Style = {"fontsize": SMALL, "handlelength": 1.2, "columnspacing": 0.8}
    legend = ax.legend(
        handles=handles,
        ncols=len(handles),
        loc="lower left",
        bbox_to_anchor=(-0.01, 1),
        bbox_transform=ax.transAxes + ScaledTranslation(0, lift / 72, ax.figure.dpi_scale_trans),
        frameon=False,
        labelcolor=INK,
        borderaxespad=0.2,
        **(crowded if len(handles) > ROOMY_LEGEND else roomy),
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def label_styles(result: Result) -> dict[str, FillStyle]:
    """Return the style of each label of a result, the same in all of its figures."""
    timeline = result.timeline
    return styles(record.label for record in (*timeline.tasks, *timeline.waits))


def title_width(text: str) -> float:
    """Return the most inches that a title takes."""
    return 0.092 * min(len(text), LONGEST_TITLE) + 0.1


def plot_nothing(result: Result, text: str, ax: "Axes | None") -> "Axes":
    """Draw a title alone, which says that there is nothing to plot; returns the axes."""
    ax = new_figure(7.2, 0.7).add_subplot() if ax is None else ax
    ax.set_axis_off()
    draw_title(ax, f"{result.title}: {text}", pad=4)
    return ax


def heat_colormap() -> "Colormap":
    """Return the colours from pale to dark for low to high, an order that survives printing."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("heat", HEAT_SHADES)


def join_words(words: Sequence[str]) -> str:
    """Return a list in words.

    >>> join_words(["x+", "x−", "y+"])
    'x+, x− and y+'
    """
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def time_scale(seconds: float) -> tuple[float, str]:
    """Return the factor and the unit in which times up to `seconds` read well."""
    return (1.0, "s") if seconds >= 1 else (1e3, "ms") if seconds >= 1e-3 else (1e6, "µs")
