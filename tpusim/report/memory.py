"""HBM over the step, as a figure: its level, its peak and who holds it, and the limit."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tpusim.program import Pass
from tpusim.report.canvas import SMALL, beside, device_of, head, legend, new_figure, quiet, scale
from tpusim.report.palette import ALARM, INK, Style
from tpusim.report.slices import memory_levels
from tpusim.result import PICO, Result
from tpusim.stages import stage_uses
from tpusim.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GIB, MIB = 2**30, 2**20
FAR = 8
"""A limit above so many times the peak is no line: it would press the level flat."""

COLUMNS = 720
"""The level is drawn in so many columns, each from its lowest to its highest."""

SHADES = {
    f"lowest in each 1/{COLUMNS} of the step": Style("#a3d0ea"),
    "highest": Style("#328cc1"),
}


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """HBM of one device over the step.

    levels: (s, bytes held from then on), every trip of every loop, in the order in which they are
    reached. held: bytes at the peak by category, the largest first. limit_bytes: what is usable.
    in_flight: microbatches that the stage of a pipeline has begun and not ended at the peak, each
    of its chunks apart; 0 where there are no such stages.
    """

    levels: tuple[tuple[float, int], ...]
    end_s: float
    peak_s: float
    peak_bytes: int
    held: dict[str, int]
    limit_bytes: float
    in_flight: int = 0


def memory_data(result: Result) -> MemoryUse:
    """The level at every change, and who holds the peak."""
    memory = result.shown.memory[0]
    return MemoryUse(
        levels=tuple((time * PICO, level) for time, level in memory_levels(result, result.lane)),
        end_s=result.step_time_s,
        peak_s=memory.peak_ps * PICO,
        peak_bytes=int(result.hbm_peak_bytes),
        held={category: int(held) for category, held in result.memory_bytes.items()},
        limit_bytes=result.hbm_bytes,
        in_flight=_in_flight(result, memory.peak_ps),
    )


def _in_flight(result: Result, time_ps: int) -> int:
    """How many microbatches the fullest stage has begun and not ended at a time."""
    if len(result.programs) == 1:
        return 0
    ran = stage_uses(result)[result.lane].ran
    last = ran[-1].slot.kind
    begun = sum(each.start_ps <= time_ps for each in ran if each.slot.kind is Pass.FORWARD)
    ended = sum(each.end_ps <= time_ps for each in ran if each.slot.kind is last)
    return begun - ended


def plot_memory(result: Result, ax: "Axes | None" = None) -> "Axes":
    """Draw `memory_data` on `ax`, or on a new figure; returns the axes."""
    use = memory_data(result)
    ax = new_figure(8.4, 3.6).add_subplot() if ax is None else ax
    factor, unit = scale(use.end_s)
    highest = use.peak_bytes if _is_far(use) else max(use.peak_bytes, use.limit_bytes)
    size, of = (GIB, "GiB") if highest >= GIB else (MIB, "MiB")
    _level(ax, use, factor, size)
    ax.set_ylim(0, 1.12 * highest / size)
    ax.set_xlim(0, use.end_s * factor)
    _limit(ax, use, size)
    ax.plot(
        use.peak_s * factor, use.peak_bytes / size, "o", markersize=6, markerfacecolor="white",
        markeredgecolor=INK, markeredgewidth=1.4, clip_on=False, zorder=5,
    )  # fmt: skip
    _holders(ax, use)
    ax.set_xlabel(f"time in the step [{unit}]{_flying(use, result)}", color=INK)
    ax.set_ylabel(f"HBM of one device [{of}]", color=INK)
    quiet(ax, grid="y")
    fits = "" if result.fits else ", does not fit"
    peak, limit = format_bytes(use.peak_bytes), format_bytes(use.limit_bytes)
    head(ax, f"{device_of(result)}: {peak} of {limit} HBM at the peak{fits}")
    legend(ax, SHADES)
    return ax


def _flying(use: MemoryUse, result: Result) -> str:
    if result.planned is None or not use.in_flight:
        return ""
    several = result.planned.plan.virtual_stages > 1
    what = "chunks of microbatches" if several else "microbatches"
    return f"; at the peak {use.in_flight} {what} in flight"


def _is_far(use: MemoryUse) -> bool:
    """Whether the limit is far above the peak."""
    return use.limit_bytes > FAR * use.peak_bytes


def _level(ax: "Axes", use: MemoryUse, factor: float, size: int) -> None:
    lows, highs = columns(use)
    edges = [factor * use.end_s * at / COLUMNS for at in range(COLUMNS + 1)]
    low = [value / size for value in (*lows, lows[-1])]
    high = [value / size for value in (*highs, highs[-1])]
    for values, style in zip((high, low), reversed(SHADES.values()), strict=True):
        ax.fill_between(edges, values, step="post", color=style.face, linewidth=0)


def columns(use: MemoryUse) -> tuple[list[int], list[int]]:
    """The lowest and the highest level in each of `COLUMNS` equal parts of the step."""
    starts, levels = (np.array(each) for each in zip(*use.levels, strict=True))
    ends = np.append(starts[1:], use.end_s)
    first, last = (np.minimum(COLUMNS - 1, (times / use.end_s * COLUMNS).astype(int))
                   for times in (starts, ends))  # fmt: skip
    lows, highs = np.full(COLUMNS, use.peak_bytes), np.zeros(COLUMNS, dtype=levels.dtype)
    lasting = ends > starts
    for at in (first, last):
        np.maximum.at(highs, at, levels)
        np.minimum.at(lows, at[lasting], levels[lasting])
    for at in np.flatnonzero(last - first > 1):
        within, level = slice(first[at], last[at]), levels[at]
        highs[within] = np.maximum(highs[within], level)
        lows[within] = np.minimum(lows[within], level)
    return lows.tolist(), highs.tolist()


def _limit(ax: "Axes", use: MemoryUse, size: int) -> None:
    if _is_far(use):
        ax.annotate(
            f"usable {format_bytes(use.limit_bytes)}, far above", (0, 1), xytext=(4, -3),
            xycoords="axes fraction", textcoords="offset points", color=ALARM, va="top",
            fontsize=SMALL + 1,
        )  # fmt: skip
        return
    limit = use.limit_bytes / size
    over = use.peak_bytes > use.limit_bytes
    ax.axhline(limit, color=ALARM, linewidth=1.4, linestyle=(0, (5, 3)))
    ax.annotate(
        f"usable {format_bytes(use.limit_bytes)}", (0, limit), xycoords=("axes fraction", "data"),
        xytext=(4, 3), textcoords="offset points", color=ALARM, fontsize=SMALL + 1, va="bottom",
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.85 if over else 0},
    )  # fmt: skip


def _holders(ax: "Axes", use: MemoryUse) -> None:
    """The peak and its holders, in a column beside the axes."""
    factor, unit = scale(use.end_s)
    peak = f"{format_bytes(use.peak_bytes)} at {use.peak_s * factor:.3g} {unit}"
    rows = [(category, format_bytes(held)) for category, held in use.held.items()]
    beside(ax, [("peak", peak), *rows], "<>")
