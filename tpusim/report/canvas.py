"""What the figures have in common: quiet axes, one legend, text that fits its place."""

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tpusim.report.palette import GRID, HEAT_SHADES, INK, MUTED, Style, styles
from tpusim.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

SMALL = 8
EDGE = 0.4
"""Points: the size of labels, and the width of the lines around bars."""

DIGIT = 0.65
"""The width of a digit, with some room in it, over the size of its font."""

LETTERS = 11.0
"""Letters of a title that have room in an inch of a figure, beside what stands left of the axes."""

ROOMY = 6
"""Entries of a legend that have room in a row; more of them stand closer."""


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure, in inches."""
    from matplotlib.figure import Figure

    from tpusim.report.layout import Column

    return Figure(figsize=(width, height), layout=Column())


def head(ax: "Axes", text: str, pad: float = 26, letters: float = LETTERS) -> None:
    """The title, with room under it for a legend; one that is too long for the figure in lines."""
    room = int(ax.get_figure(root=True).get_figwidth() * letters)  # type: ignore[union-attr]
    lines = "\n".join(wrap(text, room))
    ax.set_title(lines, loc="left", y=1.0, fontsize=11, color=INK, pad=pad, parse_math=False)


def beside(ax: "Axes", rows: Sequence[Sequence[str]], sides: str) -> None:
    """A table right of the axes; the first row is its head. `sides` aligns each column: `<` or `>`.

    Letters of one width keep the columns straight in a single text: texts are what takes time.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)
        )
        for row in rows
    ]
    for text, colour in ((lines[0], MUTED), ("\n".join(["", *lines[1:]]), INK)):
        ax.annotate(
            text, (1, 1), xycoords="axes fraction", xytext=(14, 0), textcoords="offset points",
            va="top", family="DejaVu Sans Mono", fontsize=SMALL - 0.5, linespacing=1.8,
            color=colour, parse_math=False,
        )  # fmt: skip


def device_of(result: Result) -> str:
    """What ran where, and of which stage the device is that a figure shows."""
    several = len(result.programs) > 1
    return f"{result.title}{f', stage {result.lane}' if several else ''}"


def quiet(ax: "Axes", *, rows: bool = False, grid: Literal["x", "y", "both"] = "x") -> None:
    """Axes without boxes; `rows` has names instead of ticks on the left."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(MUTED)
    ax.tick_params(color=MUTED, labelcolor=INK, labelsize=9)
    if rows:
        ax.spines["left"].set_visible(False)
        ax.tick_params(axis="y", length=0)
    ax.grid(True, axis=grid, color=GRID, linewidth=0.6)
    ax.set_axisbelow(True)


def fill(style: Style) -> dict[str, Any]:
    """The arguments of a patch in that style."""
    return {"facecolor": style.face, "hatch": style.hatch, "edgecolor": INK, "linewidth": EDGE}


def boxes(ax: "Axes", sides: "ArrayLike", look: Mapping[str, Any]) -> None:
    """Boxes of one look, each by its left, right, lower and upper side, as one shape.

    sides: [box, side], in data coordinates. Hatching is drawn anew for every shape, and single
    patches of a long step would take seconds.
    """
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    left, right, low, high = np.asarray(sides, dtype=float).T
    corners = [(left, low), (left, high), (right, high), (right, low), (left, low)]
    points = np.stack([np.stack(corner, axis=1) for corner in corners], axis=1).reshape(-1, 2)
    codes = [Path.MOVETO, *[Path.LINETO] * 3, Path.CLOSEPOLY] * len(left)
    ax.add_artist(PathPatch(Path(points, codes), **look))


def legend(ax: "Axes", entries: Mapping[str, Style], lift: float = 0) -> None:
    """A row of entries under the title, `lift` points above the axes."""
    from matplotlib.patches import Patch
    from matplotlib.transforms import ScaledTranslation

    handles = [Patch(**fill(style), label=label) for label, style in entries.items()]
    crowded = len(handles) > ROOMY
    above = ax.transAxes + ScaledTranslation(0, lift / 72, ax.figure.dpi_scale_trans)
    made = ax.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(-0.01, 1), ncols=len(handles),
        bbox_transform=above,
        frameon=False, fontsize=SMALL if crowded else 9, labelcolor=INK, borderaxespad=0.2,
        handlelength=1.2 if crowded else 1.6, columnspacing=0.8 if crowded else 1.4,
    )  # fmt: skip
    for text in made.get_texts():
        text.set_parse_math(False)


def style_of(result: Result) -> dict[str, Style]:
    """The style of each label of a result: the same one in all of its figures."""
    timeline = result.timeline
    return styles(record.label for record in (*timeline.tasks, *timeline.waits))


def width_of(text: str) -> float:
    """Inches that a title takes, at the most."""
    return 0.092 * len(text) + 0.1


def nothing(result: Result, text: str, ax: "Axes | None") -> "Axes":
    """A figure of its title alone, which says that there is nothing to draw."""
    ax = new_figure(7.2, 0.7).add_subplot() if ax is None else ax
    ax.set_axis_off()
    head(ax, f"{result.title}: {text}", pad=4)
    return ax


def heat() -> "Colormap":
    """Pale to dark for little to much: the order is kept in print."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("heat", HEAT_SHADES)


def joined(words: Sequence[str]) -> str:
    """A list in words.

    >>> joined(["x+", "x−", "y+"])
    'x+, x− and y+'
    """
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def scale(seconds: float) -> tuple[float, str]:
    """Factor and unit in which a time up to `seconds` reads well."""
    return (1.0, "s") if seconds >= 1 else (1e3, "ms") if seconds >= 1e-3 else (1e6, "µs")
