"""The core's time in one layer on two timelines, one above the other: measured and predicted."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tpusim.base.units import format_seconds
from tpusim.report.figures import canvas
from tpusim.report.figures.palette import INK, MUTED, FillStyle, styles
from tpusim.results import PICO

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

WIDTH, HEIGHT = 10.0, 3.1
POINTS = 0.86 * WIDTH * 72
"""Inches of the figure, and points of its axes."""

BAR_HEIGHT, ROW_HEIGHT = 0.7, 1.3
NAME_POINTS, LETTER_POINTS = 6.5, 4.1
MOST_LINKS = 8
"""Operations that a line joins on both timelines: those whose times differ most."""


class CoreBar(NamedTuple):
    """What a core does, for so many picoseconds. kind: of work or wait, which has a colour."""

    operation: str
    kind: str
    duration_ps: int


def plot_timelines(title: str, rows: Mapping[str, Sequence[CoreBar]]) -> "Axes":
    """Draw a row of bars for each timeline, one after the other; returns the axes.

    Lines join the ends of the operations on two rows whose times differ most.
    """
    ax = canvas.new_figure(WIDTH, HEIGHT).add_subplot()
    ends = {name: np.cumsum([bar.duration_ps for bar in bars]) for name, bars in rows.items()}
    longest = max(int(each[-1]) for each in ends.values())
    factor, unit = canvas.time_scale(longest * PICO)
    times = PICO * factor
    known = styles({bar.kind for bars in rows.values() for bar in bars})
    for row, (name, bars) in enumerate(rows.items()):
        _draw_row(ax, bars, ends[name] * times, row * ROW_HEIGHT, known, longest * times)
    if len(rows) == 2:
        _draw_links(ax, ((bars, ends[name] * times) for name, bars in rows.items()))
    names = [f"{name}\n{format_seconds(PICO * int(each[-1]))}" for name, each in ends.items()]
    ax.set_yticks([row * ROW_HEIGHT + BAR_HEIGHT / 2 for row in range(len(rows))], names)
    ax.set_ylim((len(rows) - 1) * ROW_HEIGHT + BAR_HEIGHT + 0.05, -0.05)
    ax.set_xlim(0, longest * times)
    ax.set_xlabel(f"time of the core [{unit}]", color=INK, fontsize=9)
    canvas.simplify_axes(ax, rows=True)
    canvas.draw_legend(ax, known)
    canvas.draw_title(ax, title)
    return ax


def _draw_row(
    ax: "Axes", bars: Sequence[CoreBar], ends: "NDArray[Any]", top: float,
    known: Mapping[str, FillStyle], longest: float,
) -> None:  # fmt: skip
    """Draw the bars of a row, those of a kind at once, and the names that fit.

    ends: of the bars, and longest: of all rows, in the axis' unit.
    """
    begins = np.concatenate([[0.0], ends[:-1]])
    for kind, style in known.items():
        mine = [at for at, bar in enumerate(bars) if bar.kind == kind]
        if mine:
            sides = [(begins[at], ends[at], top, top + BAR_HEIGHT) for at in mine]
            canvas.draw_boxes(ax, sides, style.arguments | {"linewidth": 0.2})
    for bar, begin, end in zip(bars, begins, ends, strict=True):
        if (end - begin) / longest * POINTS > LETTER_POINTS * len(bar.operation):
            style = known[bar.kind]
            face = {"facecolor": style.face, "edgecolor": "none", "pad": 0.8}
            ax.text(
                (begin + end) / 2, top + BAR_HEIGHT / 2, bar.operation, fontsize=NAME_POINTS,
                bbox=face, color=style.text, ha="center", va="center", parse_math=False,
            )  # fmt: skip


def _draw_links(ax: "Axes", rows: Iterable[tuple[Sequence[CoreBar], "NDArray[Any]"]]) -> None:
    """Join the ends of the operations of two rows whose times differ most.

    rows: bars, and their ends in the axis' unit. Of an operation that occurs again, the first.
    """
    upper, lower = (
        {bar.operation: (end, bar.duration_ps) for bar, end in [*zip(*row, strict=True)][::-1]}
        for row in rows
    )
    pairs = [(each, lower[name]) for name, each in upper.items() if name in lower]
    pairs.sort(key=lambda pair: -abs(pair[0][1] - pair[1][1]))
    for one, other in pairs[:MOST_LINKS]:
        ax.plot((one[0], other[0]), (BAR_HEIGHT, ROW_HEIGHT), color=MUTED, linewidth=0.7)
