"""The bytes that each mesh axis puts on each class of links, as a matrix."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from tpusim.base.plain_text import plain
from tpusim.base.units import format_bytes
from tpusim.costs import DCN, DIE_LINKS
from tpusim.hardware import DCN_PREFIX
from tpusim.report.figures import canvas
from tpusim.report.figures.palette import INK, MUTED, SMALL, Style
from tpusim.report.figures.registry import of_result, register_figure
from tpusim.report.figures.utilisation import both_ways
from tpusim.report.link_traffic import link_volumes
from tpusim.results import ReplayResult, Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NANO = 1e-9
TOTAL_ROW = "all"


@dataclass(frozen=True, slots=True)
class AxisTraffic:
    """Bytes per step of one device on each collective's busiest link of a class, by groups of axes.

    They are summed over collectives, whose busiest links may differ.

    rows: the axes of the collectives that cross links, such as `fsdp` or `data+tensor`.
    columns: the link classes of the slice.
    bytes: [row][column].
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    bytes: tuple[tuple[float, ...], ...]

    @property
    def totals(self) -> tuple[float, ...]:
        """The sums over the rows, one for each link class."""
        return tuple(map(sum, zip(*self.bytes, strict=True))) or (0.0,) * len(self.columns)


def axes_data(result: Result) -> AxisTraffic:
    """Return the bytes of each group of axes on each link class, sorted by the most on one class.

    The sum of a column is the volume of the class in `timeline.links`; with a pipeline, that of the
    stage where it carried most.
    """
    columns = _columns(result)
    volumes = link_volumes(result)
    labels = {label for link in columns for label, volume in volumes[link].items() if volume}
    rows = {label: tuple(NANO * volumes[link][label] for link in columns) for label in labels}
    order = sorted(rows, key=lambda label: (-max(rows[label]), label))
    return AxisTraffic(tuple(order), columns, tuple(rows[label] for label in order))


def _columns(result: Result) -> tuple[str, ...]:
    """Return the link classes of the slices; dimensions of one chip have none."""
    topology, pod = result.pod.topology, result.pod
    sizes = zip(topology.names, topology.dims, strict=True)
    ici = [f"ici:{name}{side}" for name, size in sizes if size > 1 for side in "+-"]
    die = DIE_LINKS if pod.chip.devices > 1 else ()
    carried = dict.fromkeys(use.link for use in result.timeline.links)
    dcn = [link for link in carried if link.startswith(DCN)] if pod.num_slices > 1 else []
    return (*ici, *die, *dcn)


@of_result
def plot_axes(result: Result, ax: "Axes | None" = None) -> "Axes":
    """Draw the bytes of each mesh axis over each class of links.

    Both directions of a link are one column where they carry the same.

    ax: None for a new figure.
    """
    every = axes_data(result)
    if not every.rows:
        return canvas.plot_nothing(result, "nothing crosses a link", ax)
    data, heads = _one_way(every)
    most = max(map(max, data.bytes))
    text = f"{result.title}: {_busiest_group(data, heads, most)}"
    names = [plain(_row_name(label, result), 2 * canvas.LONGEST_LABEL) for label in data.rows]
    names += [TOTAL_ROW] if len(names) > 1 else []
    if ax is None:
        left = 0.085 * max(map(len, names)) + 0.1
        wide = max(7.2, left + 0.78 * len(data.columns), left + canvas.title_width(text))
        ax = canvas.new_figure(wide, 1.1 + 0.34 * len(names)).add_subplot()
    cells = np.array(data.bytes)
    shown = np.where(cells, cells, np.nan)
    ax.imshow(shown, canvas.heat_colormap(), vmin=0, vmax=most, aspect="auto", interpolation="none")
    _draw_numbers(ax, data, most)
    ax.set_yticks(range(len(names)), names, parse_math=False)
    ax.set_xticks(range(len(data.columns)), heads)
    ax.set_ylim(len(names) - 0.5, -0.5)
    canvas.simplify_axes(ax, rows=True)
    ax.grid(False)
    ax.spines["bottom"].set_visible(False)
    ax.tick_params(length=0)
    of = "a device of the busiest stage" if len(result.programs) > 1 else "one device"
    ax.set_xlabel(
        f"each collective's busiest links, summed, one way [bytes of {of} per step]", color=INK
    )
    canvas.draw_title(ax, text, pad=8)
    return ax


def _one_way(data: AxisTraffic) -> tuple[AxisTraffic, list[str]]:
    """Return the traffic with one of two directions that carry the same, and names of columns."""
    columns = dict(zip(data.columns, zip(*data.bytes, strict=True), strict=True))
    named = both_ways(
        columns, lambda one, other: _written(columns[one]) == _written(columns[other])
    )
    kept = tuple(links[0] for _, links in named)
    cells = tuple(zip(*(columns[link] for link in kept), strict=True))
    return AxisTraffic(data.rows, kept, cells), [name for name, _ in named]


def _written(column: Sequence[float]) -> list[str]:
    return [format_bytes(nbytes) for nbytes in column]


def _busiest_group(data: AxisTraffic, heads: Sequence[str], most: float) -> str:
    """Return the axes that put most on the links of a class, in words."""
    name = heads[data.bytes[0].index(most)]
    return f"{data.rows[0]} puts most on its busiest links, {format_bytes(most)} on {name}"


def _draw_numbers(ax: "Axes", data: AxisTraffic, most: float) -> None:
    """Write the bytes of each cell and of each column; a dot where nothing crosses."""
    rows = (*data.bytes, data.totals) if len(data.rows) > 1 else data.bytes
    centred: Style = {"ha": "center", "va": "center", "fontsize": SMALL}
    for row, cells in enumerate(rows):
        total = row == len(data.rows)
        for column, nbytes in enumerate(cells):
            text = format_bytes(nbytes) if nbytes else "·"
            dark = not total and nbytes > 0.45 * most
            color = "white" if dark else INK if nbytes else MUTED
            weight = "bold" if total else "normal"
            ax.text(column, row, text, color=color, weight=weight, **centred)


def _row_name(label: str, result: Result) -> str:
    """Return a group of axes with its size and placement: `fsdp = 256 on y, z`."""
    axes, sizes = label.split("+"), dict(result.program.axes)
    if not sizes.keys() >= {*axes}:
        return label  # a program of others has a name with a plus
    size = prod(sizes[axis] for axis in axes)
    if all(axis.startswith(DCN_PREFIX) for axis in axes):
        return f"{label} = {size} slices"
    written = result.placement.written
    parts = [part for axis in axes for part in written.get(axis, ())]
    if isinstance(result, ReplayResult) and set(axes) <= set(result.unnamed):
        return f"{label} = {size}"
    return f"{label} = {size} on {', '.join(parts)}"


register_figure("axes", axes_data, plot_axes)
