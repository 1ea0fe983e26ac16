"""The core's time in one layer on two timelines, one above the other: measured and predicted."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tpusim.base.units import format_seconds
from tpusim.report.figures import canvas
from tpusim.report.figures.palette import INK, MUTED, FillStyle, styles
from tpusim.results import PICO

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 10.0, 3.1
"""Inches of the figure."""

BAR_HEIGHT, ROW_HEIGHT = 0.7, 1.3
NAME_POINTS, LETTER_POINTS = 6.5, 4.1
MOST_LINKS = 8
"""Operations that a line joins on both timelines: those whose times differ most."""


class CoreBar(NamedTuple):
    """What a core does for a time. Picoseconds since the layer began.

    kind: of work or wait, which decides the colour.
    """

    operation: str
    kind: str
    start_ps: int
    duration_ps: int


def plot_timelines(title: str, rows: Mapping[str, Sequence[CoreBar]]) -> "Axes":
    """Draw a row of bars for each timeline, the first one on top; returns the axes.

    Lines join the operations on two rows whose times differ most.
    """
    ax = canvas.new_figure(WIDTH, HEIGHT).add_subplot()
    longest = max(bar.start_ps + bar.duration_ps for bars in rows.values() for bar in bars)
    factor, unit = canvas.time_scale(longest * PICO)
    times = PICO * factor
    known = styles({bar.kind for bars in rows.values() for bar in bars})
    points = 0.86 * WIDTH * 72 / longest
    for row, bars in enumerate(rows.values()):
        _draw_row(ax, bars, row * ROW_HEIGHT, times, points, known)
    if len(rows) == 2:
        upper, lower = rows.values()
        _draw_links(ax, upper, lower, times)
    names = [
        f"{name}\n{format_seconds(PICO * sum(bar.duration_ps for bar in bars))}"
        for name, bars in rows.items()
    ]
    ax.set_yticks([row * ROW_HEIGHT + BAR_HEIGHT / 2 for row in range(len(rows))], names)
    ax.set_ylim((len(rows) - 1) * ROW_HEIGHT + BAR_HEIGHT + 0.05, -0.05)
    ax.set_xlim(0, longest * times)
    ax.set_xlabel(f"time since its start [{unit}]", color=INK, fontsize=9)
    canvas.simplify_axes(ax, rows=True)
    canvas.draw_legend(ax, known)
    canvas.draw_title(ax, title)
    return ax


def _draw_row(
    ax: "Axes", bars: Sequence[CoreBar], top: float, times: float, points: float,
    known: Mapping[str, FillStyle],
) -> None:  # fmt: skip
    """Draw the bars of a row, those of a kind at once, and the names that fit.

    times: from picoseconds to the axis' unit. points: of a picosecond.
    """
    for kind, style in known.items():
        mine = [bar for bar in bars if bar.kind == kind]
        if mine:
            ends = [
                (bar.start_ps * times, (bar.start_ps + bar.duration_ps) * times) for bar in mine
            ]
            sides = [(left, right, top, top + BAR_HEIGHT) for left, right in ends]
            canvas.draw_boxes(ax, sides, style.arguments | {"linewidth": 0.2})
    for bar in bars:
        if bar.duration_ps * points > LETTER_POINTS * len(bar.operation):
            style = known[bar.kind]
            face = {"facecolor": style.face, "edgecolor": "none", "pad": 0.8}
            middle = (bar.start_ps + bar.duration_ps / 2) * times
            ax.text(
                middle, top + BAR_HEIGHT / 2, bar.operation, fontsize=NAME_POINTS, bbox=face,
                color=style.text, ha="center", va="center", parse_math=False,
            )  # fmt: skip


def _draw_links(
    ax: "Axes", upper: Sequence[CoreBar], lower: Sequence[CoreBar], times: float
) -> None:
    """Join the ends of the operations whose times differ most."""
    found = {bar.operation: bar for bar in lower}
    pairs = [(bar, found[bar.operation]) for bar in upper if bar.operation in found]
    pairs.sort(key=lambda pair: -abs(pair[0].duration_ps - pair[1].duration_ps))
    for pair in pairs[:MOST_LINKS]:
        ends = [(bar.start_ps + bar.duration_ps) * times for bar in pair]
        ax.plot(ends, (BAR_HEIGHT, ROW_HEIGHT), color=MUTED, linewidth=0.7)
