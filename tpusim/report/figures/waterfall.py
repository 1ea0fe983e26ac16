"""From one step to another by the causes of their difference: a waterfall."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpusim.report.comparison import Comparison, StepDifference
from tpusim.report.figures import canvas
from tpusim.report.figures.palette import INK, MUTED, FillStyle
from tpusim.results import PICO

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_CAUSES = 9
LEAST_CAUSE = 0.002
"""Causes that have a row of their own, at most, and the least share of all changes of each."""

OTHER_CAUSES = "other causes"
MOST_KEYS = 3
"""Settings that the title names, at most."""

PART_BAR, STEP_BAR = 0.6, 0.72
"""Thickness of the bars, in rows."""

LEAST_ZOOM = 0.5
"""The axis begins at 0 if the causes reach over this fraction of the longer step, or more."""

MARGINS = (0.35, 0.45)
"""Room to the left and right of the causes for their labels, relative to what they reach over."""

LONGER, SHORTER = FillStyle("#f2a541", "////"), FillStyle("#a3d0ea")
STEP = FillStyle("#0b3c5d")


@dataclass(frozen=True, slots=True)
class WaterfallBar:
    """A bar from one time to another, in picoseconds: a step from 0, or a cause."""

    name: str
    start_ps: int
    end_ps: int


def waterfall_data(difference: StepDifference) -> tuple[WaterfallBar, ...]:
    """Return the bars: the first step, each cause from where the last one ended, the second step.

    The causes are the largest first; the least of them are one bar.
    """
    parts = {name: ps for name, ps in difference.parts_ps.items() if ps}
    moved = sum(map(abs, parts.values()))
    shown = [name for name in parts if abs(parts[name]) >= LEAST_CAUSE * moved][:MOST_CAUSES]
    left = [name for name in parts if name not in shown]
    if len(left) == 1:
        shown += left
    causes = {name: parts[name] for name in shown}
    if len(left) > 1:
        causes[OTHER_CAUSES] = sum(parts[name] for name in left)
    at = difference.a.step_ps
    bars = [WaterfallBar(difference.names[0], 0, at)]
    for name, ps in causes.items():
        bars.append(WaterfallBar(name, at, at + ps))
        at += ps
    return (*bars, WaterfallBar(difference.names[1], 0, at))


def plot_waterfall(comparison: Comparison) -> "Sequence[Axes]":
    """Draw a panel for each step but the first, on a new figure; returns the axes.

    The axis of time may begin after 0, which its label then says.
    """
    panels = [waterfall_data(difference) for difference in comparison.differences]
    heights = [0.32 * len(bars) + 1.3 for bars in panels]
    figure = canvas.new_figure(9.0, sum(heights))
    grid = figure.add_gridspec(len(panels), 1, height_ratios=heights)
    axes = [figure.add_subplot(grid[at, 0]) for at in range(len(panels))]
    for ax, bars, difference in zip(axes, panels, comparison.differences, strict=True):
        _draw(ax, bars, difference)
    return axes


def _draw(ax: "Axes", bars: Sequence[WaterfallBar], difference: StepDifference) -> None:
    factor, unit = canvas.time_scale(max(bars[0].end_ps, bars[-1].end_ps) * PICO)
    scale = factor * PICO
    low, high = _window(bars)
    for place, bar in enumerate(bars):
        step = place in (0, len(bars) - 1)
        start = max(bar.start_ps, low) if step else bar.start_ps
        change = bar.end_ps - bar.start_ps
        look = STEP if step else LONGER if change > 0 else SHORTER
        thick = STEP_BAR if step else PART_BAR
        ax.barh(place, (bar.end_ps - start) * scale, thick, start * scale, **look.arguments)
        right = max(bar.start_ps, bar.end_ps) * scale
        text = f"{change * scale:#.4g} {unit}" if step else f"{change * scale:+.3g} {unit}"
        canvas.draw_note(ax, text, (right, place), (5, 0), va="center", fontsize=9)
        if place + 1 < len(bars):
            end = [bar.end_ps * scale] * 2
            ax.plot(end, [place, place + 1], color=MUTED, linewidth=0.8, zorder=0)
    ax.set_xlim(low * scale, high * scale)
    canvas.simplify_axes(ax, rows=True)
    ax.set_yticks(range(len(bars)), [bar.name for bar in bars], parse_math=False)
    ax.invert_yaxis()
    note = f"; the axis begins at {low * scale:.3g} {unit}" if low else ""
    ax.set_xlabel(f"time of the step [{unit}]{note}", color=INK)
    canvas.draw_legend(ax, {"longer": LONGER, "shorter": SHORTER})
    canvas.draw_title(ax, waterfall_title(difference))


def waterfall_title(difference: StepDifference) -> str:
    """Return what the steps are of and, where that is the same, the settings that differ."""
    (a, b), first, second = difference.names, difference.a.title, difference.b.title
    if first != second:
        return f"From {a}, {first}, to {b}, {second}"
    changed = [*Comparison((difference.a, difference.b)).different_settings]
    keys = (
        "many settings" if len(changed) > MOST_KEYS else canvas.join_words(changed or ["nothing"])
    )
    return f"{first}, from {a} to {b}: {keys} changed"


def _window(bars: Sequence[WaterfallBar]) -> tuple[float, float]:
    """Return the ends of the axis: all causes, and from 0 unless they are a small part of it."""
    ends = [bar.end_ps for bar in bars]
    low, high = min(ends), max(ends)
    reach = high - low
    if reach >= LEAST_ZOOM * high or not reach:
        return 0.0, 1.15 * high
    left, right = MARGINS
    return max(low - left * reach, 0.0), high + right * reach
