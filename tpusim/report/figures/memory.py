"""HBM over the step: its level, its peak by category, and the limit."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import cycle
from operator import add
from typing import TYPE_CHECKING

import numpy as np

from tpusim.base.units import format_bytes
from tpusim.program import PassKind
from tpusim.report.figures import canvas
from tpusim.report.figures.palette import ALARM, INK, SMALL, FillStyle, Style
from tpusim.report.figures.registry import of_result, register_figure
from tpusim.report.track_slices import held_levels, memory_levels
from tpusim.results import PICO, Fit, Result, pipelined
from tpusim.results.stage_uses import stage_uses

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GIB, MIB = 2**30, 2**20
FAR_LIMIT = 8
"""A limit above this multiple of the peak is not drawn as a line, which would flatten the level."""

HEAP = "heap"
"""The category of a compiled program's buffers that come and go, where the compiler reports it."""

LEVEL_COLUMNS, LEVEL_ROWS = 720, 900
"""Columns in which the level is drawn, each at its highest moment, and steps of its height."""

HOLDER_STYLES: Mapping[str, FillStyle] = {
    "weights": FillStyle("#0b3c5d", text="white"),
    "optimizer state": FillStyle("#c3c9d0", "||||"),
    "cast weights": FillStyle("#5f8fb0", "\\\\\\\\", text="white"),
    "gathered weights": FillStyle("#a3d0ea"),
    "saved activations": FillStyle("#9a86b8", "////"),
    "activations": FillStyle("#dcd3e8"),
    "gradients": FillStyle("#8fae8b", "----"),
    "fragmentation": FillStyle("#e4e7eb", "xx"),
}
"""What holds HBM in most steps. Amber is left to the mesh axes."""

OTHER_HOLDERS = (
    FillStyle("#b9a6d3", "xxxx"),
    FillStyle("#a9d3cf", "++++"),
    FillStyle("#8c96a3", "--"),
    FillStyle("#7aa5a1", "*"),
)
"""The styles of what else holds HBM, in turn."""


@dataclass(frozen=True, slots=True)
class MemoryFigure:
    """HBM of one device over the step.

    levels: (seconds, bytes held from then on) in every iteration of every loop, in order.
    held: bytes at the peak by category, the largest first.
    limit_bytes: usable HBM.
    stacks: bytes by category, what changes least first, in each of `LEVEL_COLUMNS` equal parts
        of the step: what is held at its highest moment.
    in_flight: microbatches that the stage of a pipeline has begun and not ended at the peak,
        counted separately for each of its chunks; 0 without such stages.
    """

    levels: tuple[tuple[float, int], ...]
    end_s: float
    peak_s: float
    peak_bytes: int
    held: dict[str, int]
    limit_bytes: float
    stacks: dict[str, tuple[int, ...]]
    in_flight: int = 0


def memory_data(result: Result) -> MemoryFigure:
    """Return the level at every change, and the peak by category."""
    memory = result.shown.memory[0]
    return MemoryFigure(
        levels=tuple((time * PICO, level) for time, level in memory_levels(result, result.lane)),
        end_s=result.step_time_s,
        peak_s=memory.peak_ps * PICO,
        peak_bytes=int(result.hbm_peak_bytes),
        held={category: int(held) for category, held in result.memory_bytes.items()},
        limit_bytes=result.hbm_bytes,
        stacks=memory_stacks(result, LEVEL_COLUMNS),
        in_flight=_in_flight(result, memory.peak_ps),
    )


def memory_stacks(result: Result, columns: int) -> dict[str, tuple[int, ...]]:
    """Return the bytes by category at the highest moment of each of so many parts of the step.

    What changes least comes first, at the bottom of a stack. Where the compiler reports what its
    heap needs, all that the heap holds is one category.
    """
    levels = dict.fromkeys(result.memory_bytes, 0)
    found: list[dict[str, int]] = []
    highest = total = 0
    for time, category, held in held_levels(result, result.lane):
        column = min(columns - 1, time * columns // result.timeline.total_ps)
        if len(found) <= column:
            found += [dict(levels) for _ in range(column + 1 - len(found))]
            highest = total
        total += held - levels.get(category, 0)
        levels[category] = held
        if total >= highest:
            highest, found[-1] = total, dict(levels)
    found += [levels for _ in range(columns - len(found))]
    stacks = {name: [each.get(name, 0) for each in found] for name in levels}
    if HEAP in result.memory_bytes:
        for name in stacks.keys() - result.memory_bytes.keys():
            stacks[HEAP] = list(map(add, stacks[HEAP], stacks.pop(name)))
    return {
        name: tuple(stacks[name])
        for name in sorted(stacks, key=lambda name: max(stacks[name]) - min(stacks[name]))
    }


def holder_styles(categories: Iterable[str]) -> dict[str, FillStyle]:
    """Return the style of each holder of HBM."""
    known = list(categories)
    others = cycle(OTHER_HOLDERS)
    more = {name: next(others) for name in sorted(known) if name not in HOLDER_STYLES}
    return {name: more.get(name) or HOLDER_STYLES[name] for name in known}


def _in_flight(result: Result, time_ps: int) -> int:
    """Return the microbatches that the fullest stage has begun and not ended at a time."""
    if len(result.programs) == 1:
        return 0
    slots = stage_uses(result)[result.lane].slots
    last = slots[-1].slot.kind
    begun = sum(each.start_ps <= time_ps for each in slots if each.slot.kind is PassKind.FORWARD)
    ended = sum(each.end_ps <= time_ps for each in slots if each.slot.kind is last)
    return begun - ended


@of_result
def plot_memory(result: Result, ax: "Axes | None" = None) -> "Axes":
    """Draw the HBM of a device over the step."""
    use = memory_data(result)
    ax = canvas.new_figure(8.4, 3.6).add_subplot() if ax is None else ax
    factor, unit = canvas.time_scale(use.end_s)
    highest = use.peak_bytes if _is_far(use) else max(use.peak_bytes, use.limit_bytes)
    size, of = (GIB, "GiB") if highest >= GIB else (MIB, "MiB")
    _draw_level(ax, use, factor, size, highest)
    ax.set_ylim(0, 1.12 * highest / size)
    ax.set_xlim(0, use.end_s * factor)
    _draw_limit(ax, use, size)
    marker: Style = {"markersize": 6, "markerfacecolor": "white", "markeredgecolor": INK}
    peak_at = (use.peak_s * factor, use.peak_bytes / size)
    ax.plot(*peak_at, "o", markeredgewidth=1.4, clip_on=False, zorder=5, **marker)
    _draw_holders(ax, use, highest / LEVEL_ROWS)
    ax.set_xlabel(f"time in the step [{unit}]{_in_flight_text(use, result)}", color=INK)
    ax.set_ylabel(f"HBM of one device [{of}]", color=INK)
    canvas.simplify_axes(ax, grid="y")
    fit = "" if result.fit is Fit.FITS else f", {result.fit}"
    peak, limit = format_bytes(use.peak_bytes), format_bytes(use.limit_bytes)
    title = f"{canvas.device_title(result)}: HBM peak {peak} of {limit}{fit}"
    canvas.draw_title(ax, title, pad=8)
    return ax


def _in_flight_text(use: MemoryFigure, result: Result) -> str:
    planned = pipelined(result)
    if planned is None or not use.in_flight:
        return ""
    what = "chunks of microbatches" if planned.plan.pipeline.virtual_stages > 1 else "microbatches"
    return f"; at the peak {use.in_flight} {what} in flight"


def _is_far(use: MemoryFigure) -> bool:
    """Return True if the limit is far above the peak."""
    return use.limit_bytes > FAR_LIMIT * use.peak_bytes


def _draw_level(ax: "Axes", use: MemoryFigure, factor: float, size: int, highest: float) -> None:
    """Draw the area of each holder, its edges rounded to what is visible.

    So steps of no visible height have no points.
    """
    edges = factor * use.end_s / LEVEL_COLUMNS * np.arange(LEVEL_COLUMNS + 1)
    least = highest / LEVEL_ROWS
    base = held = np.zeros(LEVEL_COLUMNS)
    for name, style in holder_styles(use.stacks).items():
        held = held + np.array(use.stacks[name])
        top = np.round(held / least) * least / size
        if (top > base).any():
            changes = np.flatnonzero((np.diff(base) != 0) | (np.diff(top) != 0)) + 1
            shown = [0, *changes, LEVEL_COLUMNS - 1]
            times = [*edges[shown[:-1]], edges[-1]]
            look: Style = {"facecolor": style.face, "hatch": style.hatch, "edgecolor": INK}
            ax.fill_between(
                times, base[shown], top[shown], step="post", linewidth=0, snap=False, **look
            )
        base = top


def _draw_limit(ax: "Axes", use: MemoryFigure, size: int) -> None:
    text, style = (
        f"usable {format_bytes(use.limit_bytes)}",
        {"color": ALARM, "fontsize": SMALL + 1},
    )
    if _is_far(use):
        canvas.draw_note(
            ax, f"{text}, far above", (0, 1), (4, -3), xycoords="axes fraction", va="top", **style
        )
        return
    limit = use.limit_bytes / size
    ax.axhline(limit, color=ALARM, linewidth=1.4, linestyle=(0, (5, 3)))
    alpha = 0.85 if use.peak_bytes > use.limit_bytes else 0
    style |= {"bbox": {"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": alpha}}
    at = {"xycoords": ("axes fraction", "data"), "va": "bottom"}
    canvas.draw_note(ax, text, (0, limit), (4, 3), **at, **style)


def _draw_holders(ax: "Axes", use: MemoryFigure, least: float) -> None:
    """Draw what holds HBM at the peak in a legend beside the axes, in the order of the stack.

    least: bytes below which nothing of a holder is visible.
    """
    from matplotlib.patches import Patch

    factor, unit = canvas.time_scale(use.end_s)
    known = holder_styles(use.stacks)
    handles = [
        Patch(**known[name].arguments, label=f"{name}: {format_bytes(use.held[name])}")
        for name in reversed(use.stacks)
        if name in use.held and max(use.stacks[name]) >= least
    ]
    legend = ax.legend(
        handles=handles,
        title=f"peak: {format_bytes(use.peak_bytes)} at {use.peak_s * factor:.3g} {unit}",
        loc="upper left",
        bbox_to_anchor=(1.01, 1.02),
        frameon=False,
        fontsize=SMALL + 0.5,
        title_fontsize=SMALL + 0.5,
        labelcolor=INK,
        alignment="left",
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


register_figure("memory", memory_data, plot_memory)
