"""A plan beside its compiled program: the step by kind of work, and what differs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING

from tpusim.base.units import format_bytes, format_seconds
from tpusim.compiler_check import ComparedPart, TwinComparison
from tpusim.report.figures import canvas
from tpusim.report.figures.palette import (
    COMPUTE_STYLES,
    INK,
    MUTED,
    PHASE_SHADES,
    SMALL,
    FillStyle,
    Style,
    styles,
)
from tpusim.results import EXPOSED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIDES = ("plan", "program")
STEP_BAR, DIFFERENCE_BAR = 0.62, 0.6
SIDE_ROOM = 1.7
"""Thickness of the bars, in rows, and width of either side in longest bars, whose labels follow."""

MOST_DIFFERENCES = 8
MOST_MEMORY = 6
LONGEST_NAME, NAME_LINES = 44, 2
"""Rows of the lower panels, and letters and lines of their names, at most."""

LEAST_MOVED = 0.001
"""The least share of the bytes on the wire of what is moved over axes of its own bar."""

PANEL_HEIGHTS = (1.0, 0.34)
"""Inches of a panel beside its rows, and of each row."""

MODE_STYLES = {
    "sync": FillStyle("#f2a541", "////"),
    "async": FillStyle("#c9dbb7"),
    "ring": FillStyle("#5c8a72", text="white"),
}
"""Modes of collectives: hatched where the core waits, as exposed time is in all figures."""


@dataclass(frozen=True, slots=True)
class CheckData:
    """What the figure shows.

    title: model, slice and both steps.
    times: seconds by kind of work, then exposed by axes; they sum to the steps.
    differences: seconds of the parts whose time differs most.
    wire: bytes on the wire by axes and mode: (axes, side, bytes by mode).
    memory: bytes of the items of HBM that differ most.
    """

    title: str
    times: tuple[ComparedPart, ...]
    differences: tuple[ComparedPart, ...]
    wire: tuple[tuple[str, str, dict[str, float]], ...]
    memory: tuple[ComparedPart, ...]


def check_data(comparison: TwinComparison) -> CheckData:
    """Return what the figure of a comparison shows."""
    times: dict[str, list[float]] = {}
    for row in comparison.times:
        pair = times.setdefault(row.what, [0.0, 0.0])
        pair[0] += row.plan
        pair[1] += row.program
    return CheckData(
        title=f"{comparison.title}: {_steps(comparison)}",
        times=tuple(
            ComparedPart(what, plan, program)
            for what, (plan, program) in times.items()
            if plan or program
        ),
        differences=tuple(
            ComparedPart(": ".join(filter(None, (row.when, row.what))), row.plan_s, row.program_s)
            for row in comparison.differences[:MOST_DIFFERENCES]
            if row.seconds
        ),
        wire=_wire(comparison),
        memory=tuple(row for row in comparison.memory[:MOST_MEMORY] if row.plan != row.program),
    )


def _steps(comparison: TwinComparison) -> str:
    plan, program = map(format_seconds, (comparison.plan_step_s, comparison.program_step_s))
    return f"plan {plan}, program {program} ({comparison.error:+.1%})"


def _wire(comparison: TwinComparison) -> tuple[tuple[str, str, dict[str, float]], ...]:
    """Return bytes on the wire by axes, side and mode, without axes over which little is moved."""
    found: dict[str, tuple[dict[str, float], dict[str, float]]] = {}
    for row in comparison.collectives:
        sums = found.setdefault("+".join(row.axes), ({}, {}))
        for modes, traffic in zip(sums, (row.plan, row.program), strict=True):
            for mode, nbytes in (traffic.modes if traffic else {}).items():
                modes[mode] = modes.get(mode, 0.0) + nbytes
    most = {axes: max(sum(side.values()) for side in sums) for axes, sums in found.items()}
    shown = sorted(most, key=lambda axes: -most[axes])
    least = LEAST_MOVED * sum(most.values())
    return tuple(
        (axes, name, modes)
        for axes in shown
        if most[axes] >= least
        for name, modes in zip(SIDES, found[axes], strict=True)
    )


def plot_check(comparison: TwinComparison) -> "Sequence[Axes]":
    """Draw a comparison on a new figure; returns its axes, the step first."""
    data = check_data(comparison)
    rows = [2, len(data.differences), len(data.wire), len(data.memory)]
    beside, each = PANEL_HEIGHTS
    panels = [max(count, 1) * each for count in rows]
    figure = canvas.new_figure(11.5, sum(panels) + beside * len(panels))
    axes: list[Axes] = _column(figure, panels)
    _draw_step(axes[0], data)
    scale, unit = canvas.time_scale(comparison.program_step_s)
    text = f"time of the plan less that of the program [{unit}]; plan against program"
    _draw_differences(axes[1], data.differences, text, scale, format_seconds)
    _draw_wire(axes[2], data)
    text = "HBM at the peak of the plan less that of the program [MiB]; plan against program"
    _draw_differences(axes[3], data.memory, text, 2**-20, format_bytes)
    return axes


def _column(figure: "Figure", heights: Sequence[float]) -> "list[Axes]":
    grid = figure.add_gridspec(len(heights), 1, height_ratios=list(heights))
    return [figure.add_subplot(grid[at, 0]) for at in range(len(heights))]


def _draw_step(ax: "Axes", data: CheckData) -> None:
    """Draw both steps as bars of their parts, in the colours of all figures."""
    scale, unit = canvas.time_scale(max(sum(r.program for r in data.times), 1e-12))
    looks = _looks([row.what for row in data.times])
    for place, side in enumerate(SIDES):
        parts = [(getattr(row, side) * scale, looks[row.what].arguments) for row in data.times]
        left = canvas.draw_stack(ax, place, STEP_BAR, parts)
        canvas.draw_note(ax, f"{left:#.4g} {unit}", (left, place), (5, 0), va="center", fontsize=9)
    longest = max(sum(getattr(row, side) for row in data.times) for side in SIDES)
    ax.set_xlim(0, 1.12 * scale * longest)
    _name_rows(ax, SIDES, f"time of the core [{unit}]")
    whole = sum(row.plan + row.program for row in data.times)
    shown = [row.what for row in data.times if row.plan + row.program >= 0.002 * whole]
    canvas.draw_legend(ax, {name: looks[name] for name in shown})
    canvas.draw_title(ax, data.title, letters=canvas.NARROW_LETTERS_PER_INCH)


def _looks(names: Sequence[str]) -> dict[str, FillStyle]:
    """Return the styles of kinds of work, and of exposed time as in the other figures."""
    exposed = [name for name in names if name.startswith(EXPOSED)]
    known = styles(name.removeprefix(EXPOSED) for name in exposed)
    work = [name for name in names if name not in exposed]
    shades = (*COMPUTE_STYLES.values(),)
    plain = {name: shades[at % len(shades)] for at, name in enumerate(work)}
    return plain | {name: known[name.removeprefix(EXPOSED)] for name in exposed}


def _draw_differences(
    ax: "Axes",
    rows: Sequence[ComparedPart],
    what: str,
    scale: float,
    written: Callable[[float], str],
) -> None:
    """Draw a bar to the right where the plan has more, to the left where the program has."""
    ax.axvline(0, color=MUTED, linewidth=0.8)
    most = max((abs(row.difference) * scale for row in rows), default=0.0) or 1.0
    for place, row in enumerate(rows):
        value = row.difference * scale
        shade = list(PHASE_SHADES.values())[1 if value > 0 else 2]
        ax.barh(place, value, DIFFERENCE_BAR, color=shade, edgecolor=INK, linewidth=0.4)
        text = f"{written(row.plan)} against {written(row.program)}"
        side = 1 if value >= 0 else -1
        style: Style = {"va": "center", "ha": "left" if side > 0 else "right", "fontsize": SMALL}
        canvas.draw_note(ax, text, (value, place), (4 * side, 0), **style)
    ax.set_xlim(-SIDE_ROOM * most, SIDE_ROOM * most)
    names = [_short(row.what) for row in rows] or ["nothing differs"]
    _name_rows(ax, names, what)


def _draw_wire(ax: "Axes", data: CheckData) -> None:
    """Draw the bytes on the wire of both sides, by axes and mode."""
    most = max((sum(modes.values()) for *_, modes in data.wire), default=0.0) or 1.0
    for place, (_, _, modes) in enumerate(data.wire):
        parts = [
            (modes[mode] / 2**20, look.arguments)
            for mode, look in MODE_STYLES.items()
            if modes.get(mode)
        ]
        left = canvas.draw_stack(ax, place, DIFFERENCE_BAR, parts)
        text = format_bytes(sum(modes.values()))
        canvas.draw_note(ax, text, (left, place), (5, 0), va="center", fontsize=SMALL)
    ax.set_xlim(0, 1.12 * most / 2**20)
    names = [f"{axes}, {side}" for axes, side, _ in data.wire] or ["nothing is moved"]
    _name_rows(ax, names, "bytes on the wire of a device [MiB]")
    moved = {mode for *_, modes in data.wire for mode, nbytes in modes.items() if nbytes}
    canvas.draw_legend(ax, {mode: look for mode, look in MODE_STYLES.items() if mode in moved})


def _name_rows(ax: "Axes", names: Sequence[str], what: str) -> None:
    canvas.simplify_axes(ax, rows=True)
    ax.set_yticks(range(len(names)), list(names), parse_math=False, linespacing=0.9)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.set_xlabel(what, color=INK, fontsize=9)


def _short(name: str) -> str:
    """Return a name in at most two lines."""
    lines = wrap(name, LONGEST_NAME)
    return "\n".join(lines if len(lines) <= NAME_LINES else [lines[0], f"{lines[1]} …"])
