"""A close look at the step: core, stages of the hosts, and the load of HBM and the links."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from tpusim.base.plain_text import plain, visible
from tpusim.base.units import format_seconds
from tpusim.costs import CORE, FROM_HOST, HBM, INPUT, TO_HOST
from tpusim.report.figures import canvas
from tpusim.report.figures.palette import HOST_STYLES, INK, MUTED, SMALL, FillStyle
from tpusim.report.figures.registry import of_result, register_figure
from tpusim.report.figures.time_windows import TimeWindow, timeline_data
from tpusim.report.figures.utilisation import both_ways
from tpusim.report.track_slices import TrackSlice
from tpusim.results import PICO, Result, operation_of, operations_by_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TIMELINE_WIDTH = 10.0
TIMELINE_POINTS = 0.86 * TIMELINE_WIDTH * 72
"""Width of the figure in inches, and of its axes in points."""

CORE_HEIGHT, HOST_HEIGHT, LINK_HEIGHT, ROW_SPACE = 1.3, 0.3, 0.62, 0.22
INCHES_PER_HEIGHT = 0.52
"""Heights of the rows and of the space between them, and the inches of a height of one."""

NARROW_POINTS = 1.0
"""The width of a bar below which edges would hide it."""

BAR_FONT = 6.5
BAR_LETTER = 0.62 * BAR_FONT
"""Points: the size of a name on a bar, and the width of one of its letters."""

LinkRow: TypeAlias = tuple[str, tuple[str, ...]]
"""The name of a row, and the links that it shows."""

BoxSides: TypeAlias = tuple[float, float, float, float]
"""Left, right, lower and upper side."""

WAIT_STYLE = FillStyle("white", "xxxxx")


@of_result
def plot_timeline(result: Result, axes: "Sequence[Axes] | None" = None) -> "tuple[Axes, ...]":
    """Draw one iteration of each loop: the core and the links.

    axes: one for each window of `timeline_data`, or none for a new figure.
    """
    windows = timeline_data(result)
    rows = [link_rows(window) for window in windows]
    if axes is None:
        heights = [
            CORE_HEIGHT
            + len(window.hosts) * (HOST_HEIGHT + ROW_SPACE)
            + len(each) * (LINK_HEIGHT + ROW_SPACE)
            for window, each in zip(windows, rows, strict=True)
        ]
        inches = 0.9 + sum(INCHES_PER_HEIGHT * height + 0.78 for height in heights)
        figure = canvas.new_figure(TIMELINE_WIDTH, inches)
        grid = figure.subplots(len(windows), 1, squeeze=False, height_ratios=heights)
        axes = list(grid[:, 0])
    known, ops = canvas.label_styles(result), operations_by_name(result.program)
    names = {name: short_name(result.called(op)) for name, op in ops.items()}
    for ax, window, links in zip(axes, windows, rows, strict=True):
        _draw_window(ax, window, links, known, names)
    drawn = {label for window in windows for label in _labels(window)}
    entries = {label: style for label, style in known.items() if label in drawn}
    waits = any(_is_wait(each) for window in windows for each in window.core)
    canvas.draw_legend(axes[0], entries | ({"core waits": WAIT_STYLE} if waits else {}), lift=18)
    took = "; ".join(f"{window.title}: {_length(window)}" for window in windows)
    canvas.draw_title(axes[0], f"{canvas.device_title(result)}: {took}", pad=44)
    return tuple(axes)


def link_rows(window: TimeWindow) -> list[LinkRow]:
    """Return the rows of the links in use: both directions are one row where they agree."""
    used = {link for load in window.loads for link in load.shares}
    host = (TO_HOST, FROM_HOST)
    order = [link for link in (HBM, *sorted(used - {HBM, *host}), *host) if link in used]
    return both_ways(order, lambda one, other: _agree(window, one, other))


def _agree(window: TimeWindow, one: str, other: str) -> bool:
    return all(load.shares.get(one) == load.shares.get(other) for load in window.loads)


def _length(window: TimeWindow) -> str:
    return format_seconds((window.end_ps - window.start_ps) * PICO)


def _labels(window: TimeWindow) -> set[str]:
    labels = {each.record.label for each in window.core if each.record}
    return labels.union(*(of for load in window.loads for of in load.shares.values()))


def _is_wait(each: TrackSlice) -> bool:
    return each.record is not None and each.record.stream != CORE


def _draw_window(
    ax: "Axes",
    window: TimeWindow,
    rows: Sequence[LinkRow],
    known: Mapping[str, FillStyle],
    names: Mapping[str, str],
) -> None:
    """Draw a window.

    known: the style of each label.
    names: the names of operations on their bars.
    """
    factor, unit = canvas.time_scale((window.end_ps - window.start_ps) * PICO)
    times = PICO * factor
    _draw_core(ax, window, times, known, names)
    middles, row_names = [CORE_HEIGHT / 2], ["core"]
    base = CORE_HEIGHT
    for stage, slices in window.hosts.items():
        base += ROW_SPACE + HOST_HEIGHT
        _draw_stage(ax, window, slices, base, times)
        middles.append(base - HOST_HEIGHT / 2)
        row_names.append(stage)
    for label, links in rows:
        base += ROW_SPACE + LINK_HEIGHT
        mean = _draw_link(ax, window, links[0], base, times, known)
        middles.append(base - LINK_HEIGHT / 2)
        row_names.append(label)
        style = {"xycoords": ("axes fraction", "data"), "va": "center"}
        canvas.draw_note(ax, f"{mean:.1%}", (1, middles[-1]), (5, 0), **style)
    ax.set_yticks(middles, [plain(name, canvas.LONGEST_LABEL) for name in row_names])
    ax.set_ylim(base + 0.04, -0.04)
    ax.set_xlim(0, (window.end_ps - window.start_ps) * times)
    ax.set_xlabel(f"time since its start [{unit}]", color=INK, fontsize=9)
    canvas.simplify_axes(ax, rows=True)
    above = {"xycoords": "axes fraction", "parse_math": False}
    title = f"{window.title}, {_length(window)}"
    canvas.draw_note(ax, title, (0, 1), (0, 4), fontsize=SMALL + 1, ha="left", **above)
    caption = "bandwidth in use (dotted: all of it), busy share of this time"
    canvas.draw_note(ax, caption, (1, 1), (36, 4), ha="right", **above)


def _draw_core(
    ax: "Axes",
    window: TimeWindow,
    times: float,
    known: Mapping[str, FillStyle],
    names: Mapping[str, str],
) -> None:
    """Draw the bars of the core, those of one style at once, and the names that fit.

    Bars of one style that follow one another are one where they are too narrow for edges.
    """
    bars: dict[tuple[FillStyle, bool], list[BoxSides]] = {}
    last: tuple[FillStyle, int] | None = None
    for each in window.core:
        assert each.record is not None
        style = WAIT_STYLE if _is_wait(each) else known[each.record.label]
        left = (each.start_ps - window.start_ps) * times
        middle = left + each.length_ps * times / 2
        points = each.length_ps / (window.end_ps - window.start_ps) * TIMELINE_POINTS
        narrow = points < NARROW_POINTS
        spans = bars.setdefault((style, narrow), [])
        if narrow and last == (style, each.start_ps):
            left = spans.pop()[0]
        spans.append((left, (each.end_ps - window.start_ps) * times, 0, CORE_HEIGHT))
        last = (style, each.end_ps) if narrow else None
        text = names.get(operation_of(each.record)) or short_name(each.record.name)
        _name_bar(ax, text, middle, points, style)
    for (style, narrow), spans in bars.items():
        edge = {"edgecolor": INK if style.hatch else "white", "linewidth": 0 if narrow else 0.25}
        canvas.draw_boxes(ax, spans, style.arguments | edge)


def _draw_stage(
    ax: "Axes", window: TimeWindow, slices: Sequence[TrackSlice], base: float, times: float
) -> None:
    """Draw when a stage of the hosts works, above `base`."""
    spans = [
        (
            (each.start_ps - window.start_ps) * times,
            (each.end_ps - window.start_ps) * times,
            base,
            base - HOST_HEIGHT,
        )
        for each in slices
    ]
    style = HOST_STYLES[INPUT]
    canvas.draw_boxes(ax, spans, style.arguments | {"linewidth": 0.25})


def _name_bar(ax: "Axes", text: str, middle: float, width: float, style: FillStyle) -> None:
    """Write a name along its bar or upright if it fits; of a line of code at least the number.

    width: of the bar, in points.
    """
    needed = BAR_LETTER * len(text) + 4
    upright = width < needed
    if upright and (width < BAR_FONT + 3 or needed > CORE_HEIGHT * INCHES_PER_HEIGHT * 72):
        line = re.search(r".(:\d+)$", text)
        return _name_bar(ax, line[1], middle, width, style) if line else None
    face = style.face if style.hatch else "none"
    ax.text(
        middle,
        CORE_HEIGHT / 2,
        text,
        fontsize=BAR_FONT,
        color=style.text,
        ha="center",
        va="center",
        rotation=90 if upright else 0,
        parse_math=False,
        bbox={"facecolor": face, "edgecolor": "none", "pad": 0.8},
    )


def short_name(name: str) -> str:
    """Return the part of a name that matters on a bar, whose colour says the kind of collective.

    >>> short_name("all-gather/bwd/layer/wk@fsdp again"), short_name("bwd/layer/wo_mlp/dw")
    ('wk', 'wo_mlp/dw')
    """
    bare = re.sub(r"@.*$| \(\+\d+\)$| again$", "", visible(name))
    return re.sub(r"^(all|reduce|collective)-[a-z]+/|\b(bwd|wgt)/|\blayer/|/chunk\b", "", bare)


def _draw_link(
    ax: "Axes",
    window: TimeWindow,
    link: str,
    base: float,
    times: float,
    known: Mapping[str, FillStyle],
) -> float:
    """Draw the fraction of a link in use, by label, above `base`; returns its mean."""
    ends = (0, (window.end_ps - window.start_ps) * times)
    for height, line in ((0.0, "-"), (LINK_HEIGHT, ":")):
        ax.plot(ends, [base - height] * 2, color=MUTED, linewidth=0.6, ls=line)
    parts: dict[str, list[BoxSides]] = {}
    for start, end, shares in constant_loads(window, link):
        left, right, low = (start - window.start_ps) * times, (end - window.start_ps) * times, base
        for label in (label for label in known if shares.get(label)):
            high = low - LINK_HEIGHT * shares[label]
            parts.setdefault(label, []).append((left, right, low, high))
            low = high
    for label, of in parts.items():
        canvas.draw_boxes(ax, of, known[label].arguments | {"linewidth": 0})
    carried = (
        sum(load.shares.get(link, {}).values()) * (load.end_ps - load.start_ps)
        for load in window.loads
    )
    return sum(carried) / (window.end_ps - window.start_ps)


def constant_loads(window: TimeWindow, link: str) -> list[tuple[int, int, dict[str, float]]]:
    """Return start and end (ps) of each constant load of a link, and its shares by label."""
    parts: list[tuple[int, int, dict[str, float]]] = []
    for load in window.loads:
        shares, start = load.shares.get(link, {}), load.start_ps
        if parts and shares == parts[-1][2]:
            start = parts.pop()[0]
        parts.append((start, load.end_ps, shares))
    return parts


register_figure("timeline", timeline_data, plot_timeline)
