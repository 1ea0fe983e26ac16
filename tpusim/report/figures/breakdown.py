"""The breakdown of the step: one bar for each kind of work, in the shades of the phases."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpusim.base.phase import Phase
from tpusim.base.plain_text import plain
from tpusim.base.units import format_seconds
from tpusim.report.figures.canvas import (
    LONGEST_LABEL,
    NARROW_LETTERS_PER_INCH,
    draw_note,
    draw_stack,
    draw_title,
    new_figure,
)
from tpusim.report.figures.palette import GRID_LINE, INK, MUTED, PHASE_SHADES, Style
from tpusim.report.figures.registry import of_result, register_figure
from tpusim.results import LEAST_SHOWN, PICO, Result, core_ps

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BREAKDOWN_BAR = 0.62
LABEL_ROOM = 1.24
"""Thickness of a bar in rows, and width of the axes in longest bars, whose labels follow them."""


@dataclass(frozen=True, slots=True)
class BreakdownBar:
    """One kind of work, or the exposed communication over one set of axes.

    seconds: of each phase that has any, in the order of the step.
    """

    label: str
    seconds: dict[Phase, float]

    @property
    def total(self) -> float:
        """Seconds of all phases."""
        return sum(self.seconds.values())


def breakdown_data(result: Result) -> tuple[BreakdownBar, ...]:
    """Return the bars, work before exposed communication, the longest first.

    They sum to the step time.
    """
    bars: dict[str, BreakdownBar] = {}
    for (label, phase), picoseconds in core_ps(result.timeline).items():
        bar = bars.setdefault(label, BreakdownBar(label, {}))
        bar.seconds[phase] = picoseconds * PICO
    return tuple(bars.values())


def breakdown_title(result: Result) -> str:
    """Return model and slice, step time and utilisation, in one line."""
    step = format_seconds(result.step_time_s)
    return f"{result.title}: {step} per step, {result.utilisation}"


@of_result
def plot_breakdown(result: Result, ax: "Axes | None" = None) -> "Axes":
    """Draw the parts of the step by kind of work.

    Bars that would print as 0.0 % are left out.
    """
    every, stages = breakdown_data(result), len(result.programs)
    step = sum(bar.total for bar in every)
    bars = tuple(bar for bar in every if bar.total >= LEAST_SHOWN * step)
    ax = new_figure(7.2, 1.5 + 0.42 * len(bars)).add_subplot() if ax is None else ax
    unit, scale = ("s", 1.0) if step >= 1 else ("ms", 1e3)
    for row, bar in enumerate(bars):
        _draw_bar(ax, row, bar, scale)
        text = f"{format_seconds(bar.total)}  ({bar.total / step:.1%})"
        frame: Style = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        draw_note(ax, text, (bar.total * scale, row), (5, 0), va="center", fontsize=9, bbox=frame)
    ax.set_xlim(0, LABEL_ROOM * scale * max(bar.total for bar in bars))
    core = "core" if stages == 1 else f"core, mean of {stages} stages"
    ax.set_xlabel(f"time of the {core} [{unit}]", color=INK)
    draw_title(ax, breakdown_title(result), letters=NARROW_LETTERS_PER_INCH)
    _name_rows(ax, bars)
    _draw_phases(ax, bars)
    return ax


def _draw_bar(ax: "Axes", row: int, bar: BreakdownBar, scale: float) -> None:
    edge: Style = {"edgecolor": INK, "linewidth": 0.5}
    parts = [
        (seconds * scale, {"color": PHASE_SHADES[phase], **edge})
        for phase, seconds in bar.seconds.items()
    ]
    draw_stack(ax, row, BREAKDOWN_BAR, parts)


def _name_rows(ax: "Axes", bars: tuple[BreakdownBar, ...]) -> None:
    names = [plain(bar.label, LONGEST_LABEL) for bar in bars]
    ax.set_yticks(range(len(bars)), names, parse_math=False)
    ax.invert_yaxis()
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.spines["bottom"].set_color(MUTED)
    ax.tick_params(axis="y", length=0, labelcolor=INK)
    ax.tick_params(axis="x", color=MUTED, labelcolor=INK)
    ax.xaxis.grid(True, color=GRID_LINE, linewidth=0.6)
    ax.set_axisbelow(True)


def _draw_phases(ax: "Axes", bars: tuple[BreakdownBar, ...]) -> None:
    """Draw the legend of the phases that occur, in a row below the title."""
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor=PHASE_SHADES[phase], edgecolor=INK, linewidth=0.5, label=str(phase))
        for phase in Phase
        if any(phase in bar.seconds for bar in bars)
    ]
    place: Style = {"loc": "lower left", "bbox_to_anchor": (-0.01, 1.0), "ncols": len(Phase)}
    text: Style = {"fontsize": 9, "labelcolor": INK, "handlelength": 1.2, "columnspacing": 1.4}
    ax.legend(handles=handles, frameon=False, **place, **text)


register_figure("breakdown", breakdown_data, plot_breakdown)
