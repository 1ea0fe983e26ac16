"""The utilisation of each link of the torus: one panel for all links that are alike."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from tpusim.report.figures import canvas
from tpusim.report.figures.palette import EDGE, INK, MUTED, SMALL, Style
from tpusim.report.figures.registry import of_result, register_figure
from tpusim.report.figures.torus_labels import LabelSpace, panel_labels
from tpusim.report.figures.torus_panels import TorusPanel, TorusPanels, torus_panels
from tpusim.report.figures.torus_use import TorusUse, torus_data
from tpusim.results import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANEL_ROW_WIDTH = 8.4
PANEL_WIDTH = 2.2
CELL_WIDTH = 0.42
PANEL_TITLE_LETTER = 0.066
"""Inches at most: of all panels in a row, of one panel, of one of its cells, and of a letter."""

SUBTITLE_SCALE = 9 / 11
"""The width of a letter in the second line of the title, relative to the first."""

LEFT_MARGIN, TOP_MARGIN, BOTTOM_MARGIN = 0.62, 0.95, 0.55
"""Inches around the panels."""

DARK_CELL = 0.45
"""The fraction of the busiest link above which a cell is too dark for dark numbers."""


@dataclass(frozen=True, slots=True)
class _PanelGrid:
    """The positions of the panels, which have the same shape; all numbers but `cell` are in cells.

    cell: inches of a cell.
    high, wide: the size of a panel.
    pitch, drop: from one panel to the next, across and down.
    across, down: panels in a row, and rows.
    """

    cell: float
    high: int
    wide: int
    pitch: int
    drop: int
    across: int
    down: int

    @classmethod
    def of(cls, panels: Sequence[TorusPanel]) -> "_PanelGrid":
        """Return the grid in which all titles fit, its rows as evenly filled as possible."""
        high, wide = panels[0].shares.shape
        cell = min(CELL_WIDTH, PANEL_WIDTH / max(high, wide))
        title = PANEL_TITLE_LETTER * max(len(panel.title) for panel in panels)
        pitch = ceil(max(wide * cell + 0.25, title + 0.15) / cell)
        down = ceil(len(panels) / max(1, int(PANEL_ROW_WIDTH / cell / pitch)))
        drop = high + ceil(0.32 / cell)
        return cls(cell, high, wide, pitch, drop, ceil(len(panels) / down), down)

    @property
    def right(self) -> int:
        """The right end of the last panel of a row."""
        return (self.across - 1) * self.pitch + self.wide

    @property
    def bottom(self) -> int:
        """The lower end of the last row."""
        return (self.down - 1) * self.drop + self.high

    @property
    def end(self) -> float:
        """The right end of the axes, after the colour bar and its numbers."""
        return self.right + 0.95 / self.cell

    def corner(self, number: int) -> tuple[int, int]:
        """Return the left and the upper end of a panel."""
        return number % self.across * self.pitch, number // self.across * self.drop


@of_result
def plot_torus(result: Result, ax: "Axes | None" = None) -> "Axes":
    """Draw the load of each link of the torus.

    A cell is the link that leaves a chip in the direction of its panel.
    """
    use = torus_data(result)
    shown = torus_panels(use)
    if not shown.panels:
        return canvas.plot_nothing(result, "nothing crosses a link of the torus", ax)
    grid, title = _PanelGrid.of(shown.panels), f"{result.title}: {busiest_links(use)}"
    if ax is None:
        widths = canvas.title_width(title), SUBTITLE_SCALE * canvas.title_width(_subtitle(shown))
        ax = _new_axes(grid, max(widths))
    top = max(use.busiest.values())
    _draw_cells(ax, shown.panels, grid, top)
    box, dots = ax.get_window_extent(), ax.figure.dpi / 72
    space = LabelSpace(box.height / dots / grid.bottom, box.width / dots / grid.end, SMALL - 1)
    for number, panel in enumerate(shown.panels):
        _label_panel(ax, panel, grid.corner(number), top, space)
    _draw_colour_bar(ax, grid, top)
    _label_axes(ax, shown, grid)
    canvas.draw_title(ax, title, pad=40)
    return ax


def _new_axes(grid: _PanelGrid, titles: float) -> "Axes":
    """Return axes with square cells, to scale, on a figure as wide as the titles at least."""
    from matplotlib.figure import Figure

    wide, high = grid.end * grid.cell, grid.bottom * grid.cell
    whole = LEFT_MARGIN + max(wide, titles), high + TOP_MARGIN + BOTTOM_MARGIN
    place = (LEFT_MARGIN / whole[0], BOTTOM_MARGIN / whole[1], wide / whole[0], high / whole[1])
    return Figure(figsize=whole).add_axes(place)


def busiest_links(use: TorusUse) -> str:
    """Return the busiest links and their utilisation in words: `x±` are both directions of x."""
    most = f"{max(use.busiest.values()):.1%}"
    signs: dict[str, str] = {}
    for direction, share in use.busiest.items():
        if f"{share:.1%}" == most:
            name, sign = direction[0], direction[1].replace("-", "−")
            signs[name] = "±" if name in signs else sign
    names = canvas.join_words([name + sign for name, sign in signs.items()])
    return f"the busiest links are {names}, {most} of the step"


def _draw_cells(ax: "Axes", panels: Sequence[TorusPanel], grid: _PanelGrid, top: float) -> None:
    """Draw all panels as one image: one artist for any number of cells."""
    cells = np.full((grid.bottom, grid.right), np.nan)
    for number, panel in enumerate(panels):
        left, upper = grid.corner(number)
        cells[upper : upper + grid.high, left : left + grid.wide] = panel.shares
    extent = (0, grid.right, grid.bottom, 0)
    colours: Style = {"cmap": canvas.heat_colormap(), "vmin": 0, "vmax": top}
    ax.imshow(cells, extent=extent, interpolation="none", aspect="auto", **colours)


def _label_panel(
    ax: "Axes", panel: TorusPanel, corner: tuple[int, int], top: float, space: LabelSpace
) -> None:
    from matplotlib.patches import Rectangle

    high, wide = panel.shares.shape
    frame = Rectangle(corner, wide, high, fill=False, ec=MUTED, linewidth=EDGE, clip_on=False)
    ax.add_patch(frame)
    canvas.draw_note(ax, panel.title.replace("-", "−"), corner, (0, 3))
    style: Style = {"ha": "center", "va": "center", "fontsize": space.font}
    for label in panel_labels(panel.shares, space):
        at = corner[0] + label.column, corner[1] + label.row
        colour = "white" if label.share > DARK_CELL * top else INK
        ax.text(*at, label.text, rotation=90 * label.upright, color=colour, **style)


def _draw_colour_bar(ax: "Axes", grid: _PanelGrid, top: float) -> None:
    """Draw the colour bar to the right of the panels."""
    left, wide = grid.right + 0.3 / grid.cell, 0.14 / grid.cell
    high = min(grid.bottom, 2 * PANEL_WIDTH / grid.cell)
    shades, extent = np.linspace(1, 0, 64)[:, None], (left, left + wide, high, 0)
    ax.imshow(shades, canvas.heat_colormap(), extent=extent, aspect="auto")
    ticks = (
        (0, f"{top:.1%}", "top"),
        (high / 2, f"{top / 2:.1%}", "center"),
        (high, "0%", "bottom"),
    )
    for height, text, side in ticks:
        canvas.draw_note(ax, text, (left + wide, height), (3, 0), va=side)
    ax.set_xlim(0, grid.end)
    ax.set_ylim(grid.bottom, 0)


def _label_axes(ax: "Axes", panels: TorusPanels, grid: _PanelGrid) -> None:
    """Set ticks at both ends of each panel, and write what a cell is."""
    last_row = (len(panels.panels) - 1) % grid.across + 1
    lefts = [grid.corner(number)[0] for number in range(last_row)]
    uppers = [row * grid.drop for row in range(grid.down)]
    ax.set_xticks(*_end_ticks(lefts, grid.wide))
    ax.set_yticks(*_end_ticks(uppers, grid.high))
    ax.set_xlabel(f"place along {panels.across} [chips]", color=INK, loc="left")
    if panels.down:
        ax.set_ylabel(f"place along {panels.down} [chips]", color=INK)
    canvas.simplify_axes(ax, rows=True)
    ax.grid(False)
    ax.spines["bottom"].set_visible(False)
    ax.tick_params(length=0, labelsize=SMALL)
    style: Style = {"xycoords": "axes fraction", "color": MUTED, "fontsize": 9}
    canvas.draw_note(ax, _subtitle(panels), (0, 1), (0, 22), **style)


def _subtitle(panels: TorusPanels) -> str:
    """Return the meaning of a cell and of a blank one, and the dimensions left out."""
    blank = any(np.isnan(panel.shares).any() for panel in panels.panels)
    parts = ["busy share of the step [%] of the link that leaves each chip"]
    parts += ["blank: no link there"] if blank else []
    parts += [f"nothing crosses {canvas.join_words(panels.unused)}"] if panels.unused else []
    return "; ".join(parts)


def _end_ticks(starts: list[int], length: int) -> tuple[list[float], list[str]]:
    """Return the positions of the first and the last chip of each panel, and their numbers."""
    chips = (0, length - 1) if length > 1 else (0,)
    return (
        [start + chip + 0.5 for start in starts for chip in chips],
        [str(chip) for _ in starts for chip in chips],
    )


register_figure("torus", torus_data, plot_torus)
