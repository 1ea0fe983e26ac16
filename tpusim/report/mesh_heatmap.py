"""MFU against the shape of the mesh: the best plan of a sweep for each pair of axis sizes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpusim.errors import TpusimError, nearest
from tpusim.report.canvas import EDGE, SMALL, head, heat, new_figure
from tpusim.report.palette import BEST, GRID, HEAT_SHADES, INK, MUTED
from tpusim.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap, Normalize
    from pandas import DataFrame

HATCH = "////"
LEAST_SPAN = 0.02
"""MFU between the ends of the scale, at the least: tiny differences stay pale."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The best plan with these sizes of the two axes.

    mfu, step_time_s: of the fastest that fits; None where none does.
    need_bytes: the least HBM that any needs, where none fits; None where all are refused.
    """

    x: int
    y: int
    mfu: float | None = None
    step_time_s: float | None = None
    need_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class MeshHeatmap:
    """The cells that a sweep has, the sizes of both axes, and the best cell, if any fits."""

    x: str
    y: str
    xs: tuple[int, ...]
    ys: tuple[int, ...]
    cells: tuple[Cell, ...]
    best: Cell | None


def mesh_heatmap_data(table: "DataFrame", x: str = "fsdp", y: str = "tensor") -> MeshHeatmap:
    """The best over all else for each size of the mesh axes `x` and `y` in a sweep's table."""
    known = list(table.columns[: table.columns.get_loc("placement")])
    for axis in (x, y):
        if axis not in known:
            raise TpusimError(f"the sweep has no axis {axis!r}; {nearest(axis, known)}")
    both = (_cell(xs, ys, table[(table[x] == xs) & (table[y] == ys)])
            for xs in _sizes(table, x) for ys in _sizes(table, y))  # fmt: skip
    cells = tuple(cell for cell in both if cell is not None)
    fitting = [cell for cell in cells if cell.mfu is not None]
    return MeshHeatmap(
        x, y, _sizes(table, x), _sizes(table, y), cells,
        best=max(fitting, key=lambda cell: cell.mfu or 0) if fitting else None,
    )  # fmt: skip


def _sizes(table: "DataFrame", axis: str) -> tuple[int, ...]:
    return tuple(int(size) for size in sorted(table[axis].unique()))


def _cell(x: int, y: int, group: "DataFrame") -> Cell | None:
    """The cell of the plans with these sizes; None where there are none."""
    if not len(group):
        return None
    fitting = group[group["fits"]]
    if len(fitting):
        first = fitting.sort_values("step_time_s", kind="stable").iloc[0]
        return Cell(x, y, float(first["mfu"]), float(first["step_time_s"]))
    needs = group["hbm_peak_bytes"].dropna()
    return Cell(x, y, need_bytes=float(needs.min()) if len(needs) else None)


def plot_mesh_heatmap(data: MeshHeatmap, ax: "Axes | None" = None, title: str = "") -> "Axes":
    """Draw the cells on `ax`, or on a new figure; returns the axes. The best has a thick frame."""
    if ax is None:
        ax = new_figure(2.2 + 0.62 * len(data.xs), 1.8 + 0.46 * len(data.ys)).add_subplot()
    shades, norm = _shades(data)
    for cell in data.cells:
        _draw(ax, data, cell, shades, norm)
    if data.best is not None:
        _frame(ax, data, data.best)
    _axes(ax, data)
    _key(ax, data)
    head(ax, title or f"MFU by mesh: best plan for each {data.x} and {data.y}")
    return ax


def _shades(data: MeshHeatmap) -> "tuple[Colormap, Normalize]":
    """Pale to dark over the range of MFU, so that the best is also the darkest in print."""
    from matplotlib.colors import Normalize

    values = [cell.mfu for cell in data.cells if cell.mfu is not None] or [0.0]
    low = min(min(values), max(values) - LEAST_SPAN)
    return heat(), Normalize(low, max(values))


def _draw(ax: "Axes", data: MeshHeatmap, cell: Cell, shades: "Colormap", norm: "Normalize") -> None:
    from matplotlib.patches import Rectangle

    at = (data.xs.index(cell.x), data.ys.index(cell.y))
    fits = cell.mfu is not None
    level = float(norm(cell.mfu)) if cell.mfu is not None else 0.0
    ax.add_patch(
        Rectangle(
            (at[0] - 0.5, at[1] - 0.5), 1, 1, linewidth=1.2 if fits else EDGE,
            facecolor=shades(level) if fits else "white", edgecolor="white" if fits else GRID,
            hatch="" if fits else HATCH,
        )
    )  # fmt: skip
    ax.text(
        *at, _label(cell), ha="center", va="center", fontsize=SMALL + 1 if fits else SMALL - 1,
        color=("white" if level > 0.45 else INK) if fits else MUTED, linespacing=1.1,
        weight="bold" if cell == data.best else "normal",
        bbox=None if fits else {"facecolor": "white", "edgecolor": "none", "pad": 0.8},
    )  # fmt: skip


def _label(cell: Cell) -> str:
    if cell.mfu is not None:
        return f"{cell.mfu:.1%}"
    return "refused" if cell.need_bytes is None else format_bytes(cell.need_bytes)


def _frame(ax: "Axes", data: MeshHeatmap, best: Cell) -> None:
    from matplotlib.patches import Rectangle

    corner = (data.xs.index(best.x) - 0.5, data.ys.index(best.y) - 0.5)
    for colour, width in ((INK, 5.6), (BEST, 3.2)):
        ax.add_patch(Rectangle(corner, 1, 1, fill=False, ec=colour, linewidth=width, zorder=5))


def _axes(ax: "Axes", data: MeshHeatmap) -> None:
    ax.set_xlim(-0.52, len(data.xs) - 0.48)
    ax.set_ylim(-0.52, len(data.ys) - 0.48)
    ax.set_xticks(range(len(data.xs)), [str(size) for size in data.xs])
    ax.set_yticks(range(len(data.ys)), [str(size) for size in data.ys])
    ax.set_xlabel(f"{data.x} [devices]", color=INK)
    ax.set_ylabel(f"{data.y} [devices]", color=INK)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0, labelcolor=INK, labelsize=9)


def _key(ax: "Axes", data: MeshHeatmap) -> None:
    """What frame and hatching mean, in a row under the title."""
    from matplotlib.patches import Patch

    handles = []
    if data.best is not None:
        best = data.best
        said = (
            f"best: {data.x} {best.x}, {data.y} {best.y}, MFU {best.mfu:.1%}, "
            f"{format_seconds(best.step_time_s or 0)} a step"
        )
        handles.append(Patch(facecolor=HEAT_SHADES[-1], edgecolor=BEST, linewidth=2.4, label=said))
    if any(cell.need_bytes is not None for cell in data.cells):
        handles.append(
            Patch(facecolor="white", edgecolor=MUTED, hatch=HATCH, linewidth=EDGE,
                  label="does not fit: HBM it needs a device")
        )  # fmt: skip
    ax.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=2, frameon=False,
        fontsize=9, labelcolor=INK, handlelength=1.8, columnspacing=1.6, borderaxespad=0.2,
    )  # fmt: skip
