"""How busy each link of the torus is, as a figure: a panel for all links that are alike."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from tpusim.report.canvas import (
    EDGE,
    SMALL,
    head,
    heat,
    joined,
    nothing,
    quiet,
    width_of,
)
from tpusim.report.palette import INK, MUTED
from tpusim.report.torus import TorusUse, torus_data
from tpusim.report.torus_labels import Room, labels
from tpusim.report.torus_panels import Panel, Panels, torus_panels
from tpusim.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 8.4
PANEL = 2.2
CELL = 0.42
LETTER = 0.066
"""Inches: of all panels in a row, of one panel, of one of its cells, and of a letter at most."""

SMALLER = 9 / 11
"""Letters of the second line of the title, in those of the first."""

LEFT, TOP, BOTTOM = 0.62, 0.95, 0.55
"""Inches around the panels."""

DARK = 0.45
"""The share of the busiest link above which a cell is too dark for dark numbers."""


@dataclass(frozen=True, slots=True)
class _Grid:
    """Where the panels lie: all have the same shape, and all numbers but `cell` are in cells.

    cell: inches. pitch, drop: from one panel to the next, across and down.
    """

    cell: float
    high: int
    wide: int
    pitch: int
    drop: int
    across: int
    down: int

    @classmethod
    def of(cls, panels: Sequence[Panel]) -> "_Grid":
        """The grid that leaves room for all titles, its rows as full as each other."""
        high, wide = panels[0].shares.shape
        cell = min(CELL, PANEL / max(high, wide))
        title = LETTER * max(len(panel.title) for panel in panels)
        pitch = ceil(max(wide * cell + 0.25, title + 0.15) / cell)
        down = ceil(len(panels) / max(1, int(WIDTH / cell / pitch)))
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
        """The left and the upper end of a panel."""
        return number % self.across * self.pitch, number // self.across * self.drop


def plot_torus(result: Result, ax: "Axes | None" = None) -> "Axes":
    """Draw `torus_data` on `ax`, or on a new figure; returns the axes.

    A cell is the link that leaves a chip in the direction of its panel.
    """
    use = torus_data(result)
    shown = torus_panels(use)
    if not shown.panels:
        return nothing(result, "nothing crosses a link of the torus", ax)
    grid, text = _Grid.of(shown.panels), f"{result.title}: {_finding(use)}"
    if ax is None:
        ax = _new_axes(grid, max(width_of(text), SMALLER * width_of(_subtitle(shown))))
    top = max(use.busiest.values())
    _image(ax, shown.panels, grid, top)
    room = _room(ax, grid)
    for number, panel in enumerate(shown.panels):
        _panel(ax, panel, grid.corner(number), top, room)
    _bar(ax, grid, top)
    _axes(ax, shown, grid)
    head(ax, text, pad=40)
    return ax


def _new_axes(grid: _Grid, titles: float) -> "Axes":
    """Axes of the grid's size, on a figure with room for the titles: cells are square, to scale."""
    from matplotlib.figure import Figure

    wide, high = grid.end * grid.cell, grid.bottom * grid.cell
    whole = LEFT + max(wide, titles), high + TOP + BOTTOM
    place = (LEFT / whole[0], BOTTOM / whole[1], wide / whole[0], high / whole[1])
    return Figure(figsize=whole).add_axes(place)


def _finding(use: TorusUse) -> str:
    """Which links are busiest, and how busy: `x±` are both directions of x."""
    most = f"{max(use.busiest.values()):.1%}"
    ways: dict[str, str] = {}
    for way, share in use.busiest.items():
        if f"{share:.1%}" == most:
            ways[way[0]] = "±" if way[0] in ways else way[1].replace("-", "−")
    names = joined([name + sign for name, sign in ways.items()])
    return f"the busiest links are {names}, {most} of the step"


def _image(ax: "Axes", panels: Sequence[Panel], grid: _Grid, top: float) -> None:
    """All panels as one image: one artist, however many cells."""
    cells = np.full((grid.bottom, grid.right), np.nan)
    for number, panel in enumerate(panels):
        left, upper = grid.corner(number)
        cells[upper : upper + grid.high, left : left + grid.wide] = panel.shares
    ax.imshow(
        cells, heat(), vmin=0, vmax=top, extent=(0, grid.right, grid.bottom, 0),
        interpolation="none", aspect="auto",
    )  # fmt: skip


def _panel(ax: "Axes", panel: Panel, corner: tuple[int, int], top: float, room: Room) -> None:
    from matplotlib.patches import Rectangle

    high, wide = panel.shares.shape
    frame = Rectangle(corner, wide, high, fill=False, ec=MUTED, linewidth=EDGE, clip_on=False)
    ax.add_patch(frame)
    ax.annotate(
        panel.title.replace("-", "−"), corner, xytext=(0, 3), textcoords="offset points",
        color=INK, fontsize=SMALL,
    )  # fmt: skip
    for label in labels(panel.shares, room):
        ax.text(
            corner[0] + label.column, corner[1] + label.row, label.text, ha="center", va="center",
            fontsize=room.font, rotation=90 * label.upright,
            color="white" if label.share > DARK * top else INK,
        )  # fmt: skip


def _room(ax: "Axes", grid: _Grid) -> Room:
    """What a cell has of the axes."""
    box, dots = ax.get_window_extent(), ax.figure.dpi / 72
    return Room(box.height / dots / grid.bottom, box.width / dots / grid.end, SMALL - 1)


def _bar(ax: "Axes", grid: _Grid, top: float) -> None:
    """The colour bar, right of the panels."""
    left, wide = grid.right + 0.3 / grid.cell, 0.14 / grid.cell
    high = min(grid.bottom, 2 * PANEL / grid.cell)
    ax.imshow(
        np.linspace(1, 0, 64)[:, None], heat(), extent=(left, left + wide, high, 0), aspect="auto",
    )  # fmt: skip
    ticks = (
        (0, f"{top:.1%}", "top"),
        (high / 2, f"{top / 2:.1%}", "center"),
        (high, "0%", "bottom"),
    )
    for place, text, side in ticks:
        ax.annotate(
            text, (left + wide, place), xytext=(3, 0), textcoords="offset points", va=side,
            color=INK, fontsize=SMALL,
        )  # fmt: skip
    ax.set_xlim(0, grid.end)
    ax.set_ylim(grid.bottom, 0)


def _axes(ax: "Axes", panels: Panels, grid: _Grid) -> None:
    """Ticks at both ends of each panel, and what a cell is."""
    last_row = (len(panels.panels) - 1) % grid.across + 1
    lefts = [grid.corner(number)[0] for number in range(last_row)]
    uppers = [row * grid.drop for row in range(grid.down)]
    ax.set_xticks(*_ends(lefts, grid.wide))
    ax.set_yticks(*_ends(uppers, grid.high))
    ax.set_xlabel(f"place along {panels.across} [chips]", color=INK, loc="left")
    if panels.down:
        ax.set_ylabel(f"place along {panels.down} [chips]", color=INK)
    quiet(ax, rows=True)
    ax.grid(False)
    ax.spines["bottom"].set_visible(False)
    ax.tick_params(length=0, labelsize=SMALL)
    ax.annotate(
        _subtitle(panels), (0, 1), xycoords="axes fraction", xytext=(0, 22),
        textcoords="offset points", color=MUTED, fontsize=9,
    )  # fmt: skip


def _subtitle(panels: Panels) -> str:
    """What a cell is, what a blank one is, and which dimensions are left out."""
    blank = any(np.isnan(panel.shares).any() for panel in panels.panels)
    parts = ["busy share of the step [%] of the link that leaves each chip"]
    parts += ["blank: no link there"] if blank else []
    parts += [f"nothing crosses {joined(panels.unused)}"] if panels.unused else []
    return "; ".join(parts)


def _ends(starts: list[int], length: int) -> tuple[list[float], list[str]]:
    """Where the first and the last place of each panel lie, and their numbers."""
    places = (0, length - 1) if length > 1 else (0,)
    return (
        [start + place + 0.5 for start in starts for place in places],
        [str(place) for _ in starts for place in places],
    )
