"""HBM over the step: its level, its peak by category, and the limit."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tpusim.base.units import format_bytes
from tpusim.program import PassKind
from tpusim.report.figures import canvas
from tpusim.report.figures.palette import ALARM, INK, SMALL, FillStyle, Style
from tpusim.report.figures.registry import register_figure
from tpusim.report.track_slices import memory_levels
from tpusim.results import PICO, Fit, Result, pipelined
from tpusim.results.stage_uses import stage_uses

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GIB, MIB = 2**30, 2**20
FAR_LIMIT = 8
"""A limit above this multiple of the peak is not drawn as a line, which would flatten the level."""

LEVEL_COLUMNS = 720
"""Columns in which the level is drawn, each from its lowest to its highest."""

LEVEL_STYLES = {
    f"lowest in each 1/{LEVEL_COLUMNS} of the step": FillStyle("#a3d0ea"),
    "highest": FillStyle("#328cc1"),
}


@dataclass(frozen=True, slots=True)
class MemoryFigure:
    """HBM of one device over the step.

    levels: (seconds, bytes held from then on) in every iteration of every loop, in order.
    held: bytes at the peak by category, the largest first.
    limit_bytes: usable HBM.
    in_flight: microbatches that the stage of a pipeline has begun and not ended at the peak,
        counted separately for each of its chunks; 0 without such stages.
    """

    levels: tuple[tuple[float, int], ...]
    end_s: float
    peak_s: float
    peak_bytes: int
    held: dict[str, int]
    limit_bytes: float
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
        in_flight=_in_flight(result, memory.peak_ps),
    )


def _in_flight(result: Result, time_ps: int) -> int:
    """Return the microbatches that the fullest stage has begun and not ended at a time."""
    if len(result.programs) == 1:
        return 0
    slots = stage_uses(result)[result.lane].slots
    last = slots[-1].slot.kind
    begun = sum(each.start_ps <= time_ps for each in slots if each.slot.kind is PassKind.FORWARD)
    ended = sum(each.end_ps <= time_ps for each in slots if each.slot.kind is last)
    return begun - ended


def plot_memory(result: Result, ax: "Axes | None" = None) -> "Axes":
    """Draw `memory_data` on `ax`, or on a new figure; returns the axes."""
    use = memory_data(result)
    ax = canvas.new_figure(8.4, 3.6).add_subplot() if ax is None else ax
    factor, unit = canvas.time_scale(use.end_s)
    highest = use.peak_bytes if _is_far(use) else max(use.peak_bytes, use.limit_bytes)
    size, of = (GIB, "GiB") if highest >= GIB else (MIB, "MiB")
    _draw_level(ax, use, factor, size)
    ax.set_ylim(0, 1.12 * highest / size)
    ax.set_xlim(0, use.end_s * factor)
    _draw_limit(ax, use, size)
    marker: Style = {"markersize": 6, "markerfacecolor": "white", "markeredgecolor": INK}
    peak_at = (use.peak_s * factor, use.peak_bytes / size)
    ax.plot(*peak_at, "o", markeredgewidth=1.4, clip_on=False, zorder=5, **marker)
    _draw_holders(ax, use)
    ax.set_xlabel(f"time in the step [{unit}]{_in_flight_text(use, result)}", color=INK)
    ax.set_ylabel(f"HBM of one device [{of}]", color=INK)
    canvas.simplify_axes(ax, grid="y")
    fit = "" if result.fit is Fit.FITS else f", {result.fit}"
    peak, limit = format_bytes(use.peak_bytes), format_bytes(use.limit_bytes)
    canvas.draw_title(ax, f"{canvas.device_title(result)}: {peak} of {limit} HBM at the peak{fit}")
    canvas.draw_legend(ax, LEVEL_STYLES)
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


def _draw_level(ax: "Axes", use: MemoryFigure, factor: float, size: int) -> None:
    lows, highs = level_columns(use)
    edges = [factor * use.end_s * at / LEVEL_COLUMNS for at in range(LEVEL_COLUMNS + 1)]
    low = [value / size for value in (*lows, lows[-1])]
    high = [value / size for value in (*highs, highs[-1])]
    for values, style in zip((high, low), reversed(LEVEL_STYLES.values()), strict=True):
        ax.fill_between(edges, values, step="post", color=style.face, linewidth=0)


def level_columns(use: MemoryFigure) -> tuple[list[int], list[int]]:
    """Return the lowest and the highest level in each of `LEVEL_COLUMNS` parts of the step."""
    starts, levels = (np.array(each) for each in zip(*use.levels, strict=True))
    ends = np.append(starts[1:], use.end_s)
    times = np.stack([starts, ends]) / use.end_s
    first, last = np.minimum(LEVEL_COLUMNS - 1, (times * LEVEL_COLUMNS).astype(int))
    lows = np.full(LEVEL_COLUMNS, use.peak_bytes)
    highs = np.zeros(LEVEL_COLUMNS, dtype=levels.dtype)
    lasting = ends > starts
    for at in (first, last):
        np.maximum.at(highs, at, levels)
        np.minimum.at(lows, at[lasting], levels[lasting])
    for at in np.flatnonzero(last - first > 1):
        within, level = slice(first[at], last[at]), levels[at]
        highs[within] = np.maximum(highs[within], level)
        lows[within] = np.minimum(lows[within], level)
    return lows.tolist(), highs.tolist()


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


def _draw_holders(ax: "Axes", use: MemoryFigure) -> None:
    """Draw the peak and its categories in a column beside the axes."""
    factor, unit = canvas.time_scale(use.end_s)
    peak = f"{format_bytes(use.peak_bytes)} at {use.peak_s * factor:.3g} {unit}"
    rows = [(category, format_bytes(held)) for category, held in use.held.items()]
    canvas.draw_table(ax, [("peak", peak), *rows], "<>")


register_figure("memory", memory_data, plot_memory)
