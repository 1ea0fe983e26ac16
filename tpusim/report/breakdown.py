"""Where the step goes, as a figure: one bar a kind of work, in the shades of the phases."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpusim.phase import Phase
from tpusim.report.canvas import head, new_figure
from tpusim.report.palette import GRID, INK, MUTED, PHASE_SHADES
from tpusim.result import PICO, Result, core_ps
from tpusim.units import format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BAR = 0.62
ROOM = 1.24
"""Thickness of a bar in rows, and width of the axes in longest bars: labels stand at their ends."""

LETTERS = 8.5
"""As in `canvas`: the names of the bars take more room."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One kind of work, or the communication over one set of axes that nothing hides.

    seconds: of each phase that has any, in the order of the step.
    """

    label: str
    seconds: dict[Phase, float]

    @property
    def total(self) -> float:
        """Seconds of all phases."""
        return sum(self.seconds.values())


def breakdown_data(result: Result) -> tuple[Bar, ...]:
    """The bars, work before exposed communication, the longest first; they sum to the step time."""
    bars: dict[str, Bar] = {}
    for (label, phase), picoseconds in core_ps(result.timeline).items():
        bar = bars.setdefault(label, Bar(label, {}))
        bar.seconds[phase] = picoseconds * PICO
    return tuple(bars.values())


def title(result: Result) -> str:
    """The figure in one line: what ran where, its step time and its MFU."""
    step = format_seconds(result.step_time_s)
    return f"{result.title}: {step} a step, {result.utilisation}"


def plot_breakdown(result: Result, ax: "Axes | None" = None) -> "Axes":
    """Draw the bars of `breakdown_data` on `ax`, or on a new figure; returns the axes."""
    bars = breakdown_data(result)
    ax = figure_for(bars).add_subplot() if ax is None else ax
    draw_breakdown(ax, bars, title(result), core_of(result))
    return ax


def core_of(result: Result) -> str:
    """Whose time the bars are."""
    stages = len(result.programs)
    return "core" if stages == 1 else f"core, mean of {stages} stages"


def figure_for(bars: tuple[Bar, ...]) -> "Figure":
    """An empty figure, high enough for the bars."""
    return new_figure(7.2, 1.5 + 0.42 * len(bars))


def draw_breakdown(ax: "Axes", bars: tuple[Bar, ...], text: str, core: str) -> None:
    """Draw bars, their names and totals, and the legend under the title `text`."""
    step = sum(bar.total for bar in bars)
    unit, scale = ("s", 1.0) if step >= 1 else ("ms", 1e3)
    for row, bar in enumerate(bars):
        _draw(ax, row, bar, scale)
        ax.annotate(
            f"{bar.total * scale:#.3g} {unit}  ({bar.total / step:.1%})", (bar.total * scale, row),
            xytext=(5, 0), textcoords="offset points", va="center", color=INK, fontsize=9,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )  # fmt: skip
    ax.set_xlim(0, ROOM * scale * max(bar.total for bar in bars))
    ax.set_xlabel(f"time of the {core} [{unit}]", color=INK)
    head(ax, text, letters=LETTERS)
    _name_rows(ax, bars)
    _legend(ax, bars)


def _draw(ax: "Axes", row: int, bar: Bar, scale: float) -> None:
    left = 0.0
    for phase, seconds in bar.seconds.items():
        ax.barh(
            row, seconds * scale, BAR, left,
            color=PHASE_SHADES[phase], edgecolor=INK, linewidth=0.5,
        )  # fmt: skip
        left += seconds * scale


def _name_rows(ax: "Axes", bars: tuple[Bar, ...]) -> None:
    ax.set_yticks(range(len(bars)), [bar.label for bar in bars], parse_math=False)
    ax.invert_yaxis()
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.spines["bottom"].set_color(MUTED)
    ax.tick_params(axis="y", length=0, labelcolor=INK)
    ax.tick_params(axis="x", color=MUTED, labelcolor=INK)
    ax.xaxis.grid(True, color=GRID, linewidth=0.6)
    ax.set_axisbelow(True)


def _legend(ax: "Axes", bars: tuple[Bar, ...]) -> None:
    """The phases that occur, in a row under the title."""
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor=PHASE_SHADES[phase], edgecolor=INK, linewidth=0.5, label=str(phase))
        for phase in Phase
        if any(phase in bar.seconds for bar in bars)
    ]
    ax.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=len(Phase),
        frameon=False, fontsize=9, labelcolor=INK, handlelength=1.2, columnspacing=1.4,
    )  # fmt: skip
