"""The drawings of the page, as positions and texts: links, roofline."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import ceil, floor, isnan, log10
from typing import NamedTuple

from tpusim.base.plain_text import plain
from tpusim.base.units import format_rate
from tpusim.report.figures.palette import HEAT_SHADES
from tpusim.report.figures.roofline import MARKERS, list_name, roofline_data
from tpusim.report.figures.torus_heatmap import DARK_CELL, busiest_links
from tpusim.report.figures.torus_panels import TorusPanel, torus_panels
from tpusim.report.figures.torus_use import torus_data
from tpusim.report.html.page_styles import scale_colour
from tpusim.results import Result, operations_by_name

CELL = 22
"""Side of a cell of the heat map, which a number of three signs fits."""

PLOT_WIDTH, PLOT_HEIGHT = 640, 320
PLOT_LEFT, PLOT_TOP = 56, 16
"""Size of the roofline and the margins of its axes."""


NUMBER_RISES = (-15, 15, -29, 29, 43, 57, 71, 85, 99, 113, 127, 141)
"""Heights above or below a point of the roofline that are tried for its number."""


class HeatCell(NamedTuple):
    """Links of one share that are neighbours in a row of a panel."""

    x: int
    y: int
    width: int
    colour: str
    ink: str
    text: str
    title: str


@dataclass(frozen=True, slots=True)
class HeatPanel:
    """A panel of the heat map; width and height in units of its drawing."""

    title: str
    width: int
    height: int
    cells: tuple[HeatCell, ...]


@dataclass(frozen=True, slots=True)
class HeatMap:
    """The links of the torus; `about` says what a cell is."""

    title: str
    about: str
    panels: tuple[HeatPanel, ...]


def heat_map(result: Result) -> HeatMap | None:
    """Return the busy share of each link of the torus, or None where nothing crosses one."""
    use = torus_data(result)
    shown = torus_panels(use)
    if not shown.panels:
        return None
    top = max(use.busiest.values())
    down = f"{shown.down} down, " if shown.down else ""
    across = f"{down}{shown.across} across"
    panels = tuple(_heat_panel(panel, top) for panel in shown.panels)
    return HeatMap(busiest_links(use), across, panels)


def _heat_panel(panel: TorusPanel, top: float) -> HeatPanel:
    high, wide = panel.shares.shape
    cells = tuple(cell for row in range(high) for cell in _heat_row(panel, row, top))
    return HeatPanel(panel.title.replace("-", "−"), wide * CELL, high * CELL, cells)


def _heat_row(panel: TorusPanel, row: int, top: float) -> Iterator[HeatCell]:
    column = 0
    for text, group in groupby(panel.shares[row], lambda share: f"{100 * share:.1f}"):
        shares = list(group)
        share, count = float(shares[0]), len(shares)
        if not isnan(share):
            chips = f"{column}" if count == 1 else f"{column} to {column + count - 1}"
            colour = scale_colour(HEAT_SHADES, share / top if top else 0.0)
            ink = "#ffffff" if share > DARK_CELL * top else "#1f2933"
            fits = text if len(text) <= 3 or count > 1 else f"{100 * share:.0f}"
            title = f"row {row}, chips {chips}: {text} %"
            yield HeatCell(column * CELL, row * CELL, count * CELL, colour, ink, fits, title)
        column += count


class RoofPoint(NamedTuple):
    """A numbered operation in the roofline, where its number is, and its row in the table."""

    number: int
    x: float
    y: float
    text_x: float
    text_y: float
    marker: str
    label: str
    name: str
    phase: str
    share: str
    reached: str


@dataclass(frozen=True, slots=True)
class RoofDrawing:
    """The roofline in units of its drawing.

    roof: the points of the roof.
    ticks: position and text, along each axis.
    """

    roof: str
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    points: tuple[RoofPoint, ...]
    peak: str
    bandwidth: str


def roof_drawing(result: Result) -> RoofDrawing | None:
    """Return the largest operations against the roofs, or None without any."""
    data = roofline_data(result)
    if not data.points:
        return None
    ridge = data.peak_flops / data.hbm_bandwidth
    reach = [ridge, *(min(p.intensity, data.farthest) for p in data.points)]
    low, high = min(reach) / 3, max(reach) * 3
    bottom = min(data.roof(low), *(p.flops_per_s for p in data.points)) / 2
    top = 2 * data.peak_flops

    def x(value: float) -> float:
        return PLOT_LEFT + _along(value, low, high) * (PLOT_WIDTH - PLOT_LEFT)

    def y(value: float) -> float:
        return PLOT_TOP + (1 - _along(value, bottom, top)) * PLOT_HEIGHT

    ops = operations_by_name(result.program)
    places = [(x(min(p.intensity, data.farthest)), y(p.flops_per_s)) for p in data.points]
    points = tuple(
        RoofPoint(
            number,
            round(place[0], 1),
            round(place[1], 1),
            round(text[0], 1),
            round(text[1], 1),
            MARKERS.get(point.label, "o"),
            point.label,
            plain(list_name(ops[point.name], result)),
            str(point.phase),
            f"{point.seconds / result.step_time_s:.1%}",
            f"{data.reached(point):.0%}",
        )
        for number, (point, place, text) in enumerate(
            zip(data.points, places, number_places(places), strict=True), 1
        )
    )
    corners = ((low, data.roof(low)), (ridge, data.peak_flops), (high, data.peak_flops))
    return RoofDrawing(
        " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in corners),
        tuple((round(x(tick), 1), f"{tick:g}") for tick in _ticks(low, high)),
        tuple((round(y(tick), 1), f"{tick / 1e12:g}") for tick in _ticks(bottom, top)),
        points,
        f"{data.dtype} {format_rate(data.peak_flops, 'FLOP/s')}",
        f"HBM {format_rate(data.hbm_bandwidth, 'B/s')}",
    )


def number_places(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return where the number of each point is: near it, and away from points and other numbers."""
    found: list[tuple[float, float]] = []
    for x, y in points:
        shifts = ((sign * a, b) for b in NUMBER_RISES for a in (0, 18) for sign in (1, -1))
        tried = [(x + a, y + b) for a, b in shifts]
        free = (place for place in tried if _is_free(place, [*found, *points]))
        found.append(next(free, tried[-1]))
    return found


def _is_free(place: tuple[float, float], taken: Sequence[tuple[float, float]]) -> bool:
    return all(abs(place[0] - x) >= 17 or abs(place[1] - y) >= 13 for x, y in taken)


def _along(value: float, low: float, high: float) -> float:
    return (log10(value) - log10(low)) / (log10(high) - log10(low))


def _ticks(low: float, high: float) -> list[float]:
    """Return the numbers that begin with 1, 2 or 5 between two; with 1 alone on a long axis."""
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    signs = (1, 2, 5) if len(powers) <= 4 else (1,)
    every = (sign * 10.0**power for power in powers for sign in signs)
    return [tick for tick in every if low <= tick <= high]


def mesh_rows(result: Result) -> list[tuple[str, int, str]]:
    """Return each axis of the mesh, its size, and its place on the torus in words."""
    written = result.placement.written
    rows = []
    for axis, size in result.program.axes:
        if size > 1:
            parts = written.get(axis, [])
            across = "across slices, over DCN" if axis.startswith("dcn_") else "nowhere"
            rows.append((axis, size, ", ".join(parts) or across))
    return rows
