"""MFU by the shape of the mesh: the best plan of a sweep for each pair of axis sizes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpusim.base.units import format_bytes, format_seconds
from tpusim.report.figures.canvas import draw_title, heat_colormap, new_figure
from tpusim.report.figures.palette import (
    BEST_FRAME,
    EDGE,
    GRID_LINE,
    HEAT_SHADES,
    INK,
    MUTED,
    SMALL,
    Style,
)
from tpusim.report.figures.sweep_table import (
    check_axes,
    check_fitting,
    checked_table,
    inputs_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap, Normalize
    from pandas import DataFrame

NUMBERS = ("step_time_s", "mfu", "hbm_peak_bytes")
"""The columns of numbers that the figure reads."""

MISFIT_HATCH = "////"
LEAST_MFU_RANGE = 0.02
"""The least MFU between the ends of the scale, so that tiny differences stay pale."""


@dataclass(frozen=True, slots=True)
class HeatmapCell:
    """The best plan with these sizes of the two axes.

    mfu, step_time_s: of the fastest that fits; None if none does.
    need_bytes: the least HBM that any needs if none fits; None if all are refused.
    """

    x: int
    y: int
    mfu: float | None = None
    step_time_s: float | None = None
    need_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class MeshHeatmap:
    """The cells of a sweep, the sizes of both axes, and the best cell, if any fits."""

    x: str
    y: str
    xs: tuple[int, ...]
    ys: tuple[int, ...]
    cells: tuple[HeatmapCell, ...]
    best: HeatmapCell | None


def mesh_heatmap_data(table: "DataFrame", x: str = "fsdp", y: str = "tensor") -> MeshHeatmap:
    """Return the best plan for each size of the mesh axes `x` and `y` in a sweep's table.

    A row without one of them, as a table of several sweeps has, counts as of size 1.

    Raise TpusimError if the sweep has no such axis, and for what is no table of a sweep.
    """
    table = checked_table(table, ("placement", *NUMBERS), NUMBERS)
    table = check_axes(table, (x, y), inputs_of(table))
    check_fitting(table, ("step_time_s", "mfu"))
    xs, ys = (tuple(map(int, sorted(table[axis].unique()))) for axis in (x, y))
    every = [_cell(a, b, table[(table[x] == a) & (table[y] == b)]) for a in xs for b in ys]
    cells = tuple(cell for cell in every if cell is not None)
    fitting = [cell for cell in cells if cell.mfu is not None]
    best = max(fitting, key=lambda cell: cell.mfu or 0) if fitting else None
    return MeshHeatmap(x, y, xs, ys, cells, best)


def _cell(x: int, y: int, group: "DataFrame") -> HeatmapCell | None:
    """Return the cell of the plans with these sizes; None if there are none."""
    if not len(group):
        return None
    fitting = group[group["fits"]]
    if len(fitting):
        first = fitting.sort_values("step_time_s", kind="stable").iloc[0]
        return HeatmapCell(x, y, float(first["mfu"]), float(first["step_time_s"]))
    needs = group["hbm_peak_bytes"].dropna()
    return HeatmapCell(x, y, need_bytes=float(needs.min()) if len(needs) else None)


def plot_mesh_heatmap(
    data: "MeshHeatmap | DataFrame",
    ax: "Axes | None" = None,
    title: str = "",
    *,
    x: str = "fsdp",
    y: str = "tensor",
) -> "Axes":
    """Draw the cells on `ax`, or on a new figure; returns the axes. The best has a thick frame.

    data: of `mesh_heatmap_data`, or a sweep's table.
    x, y: mesh axes of a table.
    """
    if not isinstance(data, MeshHeatmap):
        data = mesh_heatmap_data(data, x, y)
    if ax is None:
        ax = new_figure(2.2 + 0.62 * len(data.xs), 1.8 + 0.46 * len(data.ys)).add_subplot()
    shades, norm = _shades(data)
    for cell in data.cells:
        _draw_cell(ax, data, cell, shades, norm)
    if data.best is not None:
        _draw_frame(ax, data, data.best)
    _label_axes(ax, data)
    _draw_key(ax, data)
    draw_title(ax, title or f"MFU by mesh: best plan for each {data.x} and {data.y}")
    return ax


def _shades(data: MeshHeatmap) -> "tuple[Colormap, Normalize]":
    """Return pale to dark over the range of MFU, so that the best is also the darkest in print."""
    from matplotlib.colors import Normalize

    values = [cell.mfu for cell in data.cells if cell.mfu is not None] or [0.0]
    low = min(min(values), max(values) - LEAST_MFU_RANGE)
    return heat_colormap(), Normalize(low, max(values))


def _draw_cell(
    ax: "Axes", data: MeshHeatmap, cell: HeatmapCell, shades: "Colormap", norm: "Normalize"
) -> None:
    from matplotlib.patches import Rectangle

    x, y = data.xs.index(cell.x), data.ys.index(cell.y)
    text: Style = {"ha": "center", "va": "center", "linespacing": 1.1}
    if cell.mfu is None:
        box: Style = {"facecolor": "white", "edgecolor": GRID_LINE, "hatch": MISFIT_HATCH}
        ax.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, linewidth=EDGE, **box))
        need = "refused" if cell.need_bytes is None else format_bytes(cell.need_bytes)
        frame = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
        ax.text(x, y, need, fontsize=SMALL - 1, color=MUTED, bbox=frame, **text)
        return
    level = float(norm(cell.mfu))
    box = {"facecolor": shades(level), "edgecolor": "white"}
    ax.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, linewidth=1.2, **box))
    weight, colour = "bold" if cell == data.best else "normal", "white" if level > 0.45 else INK
    ax.text(x, y, f"{cell.mfu:.1%}", fontsize=SMALL + 1, color=colour, weight=weight, **text)


def _draw_frame(ax: "Axes", data: MeshHeatmap, best: HeatmapCell) -> None:
    from matplotlib.patches import Rectangle

    corner = (data.xs.index(best.x) - 0.5, data.ys.index(best.y) - 0.5)
    for colour, width in ((INK, 5.6), (BEST_FRAME, 3.2)):
        ax.add_patch(Rectangle(corner, 1, 1, fill=False, ec=colour, linewidth=width, zorder=5))


def _label_axes(ax: "Axes", data: MeshHeatmap) -> None:
    ax.set_xlim(-0.52, len(data.xs) - 0.48)
    ax.set_ylim(-0.52, len(data.ys) - 0.48)
    ax.set_xticks(range(len(data.xs)), [str(size) for size in data.xs])
    ax.set_yticks(range(len(data.ys)), [str(size) for size in data.ys])
    ax.set_xlabel(f"{data.x} [devices]", color=INK, parse_math=False)
    ax.set_ylabel(f"{data.y} [devices]", color=INK, parse_math=False)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0, labelcolor=INK, labelsize=9)


def _draw_key(ax: "Axes", data: MeshHeatmap) -> None:
    """Draw the meaning of frame and hatching in a row below the title."""
    from matplotlib.patches import Patch

    handles = []
    if best := data.best:
        text = (
            f"best: {data.x} {best.x}, {data.y} {best.y}, MFU {best.mfu:.1%}, "
            f"{format_seconds(best.step_time_s or 0)} per step"
        )
        best_look: Style = {"facecolor": HEAT_SHADES[-1], "edgecolor": BEST_FRAME, "linewidth": 2.4}
        handles.append(Patch(label=text, **best_look))
    if any(cell.need_bytes is not None for cell in data.cells):
        misfit: Style = {"facecolor": "white", "edgecolor": MUTED, "linewidth": EDGE}
        text = "does not fit: HBM needed per device"
        handles.append(Patch(label=text, hatch=MISFIT_HATCH, **misfit))
    place: Style = {"loc": "lower left", "bbox_to_anchor": (-0.01, 1.0), "borderaxespad": 0.2}
    style: Style = {"fontsize": 9, "labelcolor": INK, "handlelength": 1.8, "columnspacing": 1.6}
    legend = ax.legend(handles=handles, ncols=2, frameon=False, **place, **style)
    for label in legend.get_texts():
        label.set_parse_math(False)
