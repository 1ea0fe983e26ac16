"""A close look at the step, as a figure: the core above, and what HBM and the links carry below."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from tpusim.costs.links import FROM_HOST, TO_HOST
from tpusim.costs.tasks import CORE, HBM
from tpusim.lines import operation_of, operations
from tpusim.report.canvas import (
    boxes,
    device_of,
    fill,
    head,
    legend,
    new_figure,
    quiet,
    scale,
    style_of,
)
from tpusim.report.palette import INK, MUTED, Style
from tpusim.report.slices import Slice
from tpusim.report.utilisation import resource_name
from tpusim.report.windows import Window, timeline_data
from tpusim.result import PICO, Result
from tpusim.units import format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 10.0
PLOT = 0.86 * WIDTH * 72
"""Inches of the figure, and points that the axes have of them."""

CORE_HEIGHT, LINK_HEIGHT, SPACE = 1.3, 0.62, 0.22
INCHES = 0.52
"""Heights of the rows and the space between them, and inches of a height of one."""

TEXT = 6.5
LETTER = 0.62 * TEXT
"""Points of a label, and of one of its letters."""

Names: TypeAlias = Mapping[str, str]
"""What the bars of operations say, by their names."""

Box: TypeAlias = tuple[float, float, float, float]
"""Left, right, lower and upper side."""

WAIT = Style("white", "xxxxx")


def plot_timeline(result: Result, axes: "Sequence[Axes] | None" = None) -> "tuple[Axes, ...]":
    """Draw each window of `timeline_data` on one of `axes`, or on a new figure; returns them."""
    windows = timeline_data(result)
    rows = [_rows(window) for window in windows]
    if axes is None:
        heights = [_height(len(each)) for each in rows]
        figure = new_figure(WIDTH, 0.9 + sum(INCHES * height + 0.78 for height in heights))
        grid = figure.subplots(len(windows), 1, squeeze=False, height_ratios=heights)
        axes = list(grid[:, 0])
    known = style_of(result)
    names = {name: short(result.called(op)) for name, op in operations(result.program).items()}
    for ax, window, links in zip(axes, windows, rows, strict=True):
        _draw(ax, window, links, known, names)
    drawn = {label for window in windows for label in _labels(window)}
    entries = {label: style for label, style in known.items() if label in drawn}
    waits = any(_waits(each) for window in windows for each in window.core)
    legend(axes[0], entries | ({"core waits": WAIT} if waits else {}), lift=18)
    took = ", ".join(
        f"one trip of {window.title.partition(':')[0]} {_took(window)}" for window in windows
    )
    head(axes[0], f"{device_of(result)}: {took}", pad=44)
    return tuple(axes)


def _rows(window: Window) -> list[tuple[str, tuple[str, ...]]]:
    """Names of the links in use, and the links: both directions are one row where they agree."""
    used = {link for load in window.loads for link in load.shares}
    host = (TO_HOST, FROM_HOST)
    order = [link for link in (HBM, *sorted(used - {HBM, *host}), *host) if link in used]
    rows: list[tuple[str, tuple[str, ...]]] = []
    for link in order:
        other = f"{link[:-1]}-"
        if link.endswith("+") and _same(window, link, other):
            rows.append((resource_name(link[:-1]), (link, other)))
        elif not rows or link not in rows[-1][1]:
            rows.append((resource_name(link), (link,)))
    return rows


def _same(window: Window, one: str, other: str) -> bool:
    return all(load.shares.get(one) == load.shares.get(other) for load in window.loads)


def _took(window: Window) -> str:
    return format_seconds((window.end_ps - window.start_ps) * PICO)


def _height(links: int) -> float:
    return CORE_HEIGHT + links * (LINK_HEIGHT + SPACE)


def _labels(window: Window) -> set[str]:
    labels = {each.record.label for each in window.core if each.record}
    return labels.union(*(of for load in window.loads for of in load.shares.values()))


def _waits(each: Slice) -> bool:
    return each.record is not None and each.record.stream != CORE


def _draw(
    ax: "Axes", window: Window, rows: list[tuple[str, tuple[str, ...]]],
    known: dict[str, Style], said: Names,
) -> None:  # fmt: skip
    factor, unit = scale((window.end_ps - window.start_ps) * PICO)
    times = PICO * factor
    length = (window.end_ps - window.start_ps) * times
    _core_row(ax, window, times, known, said)
    places, names = [CORE_HEIGHT / 2], ["core"]
    base = CORE_HEIGHT
    for label, links in rows:
        base += SPACE + LINK_HEIGHT
        mean = _link_row(ax, window, links[0], base, times, known)
        places.append(base - LINK_HEIGHT / 2)
        names.append(label)
        ax.annotate(
            f"{mean:.1%}", (1, base - LINK_HEIGHT / 2), xycoords=("axes fraction", "data"),
            xytext=(5, 0), textcoords="offset points", va="center", fontsize=8, color=INK,
        )  # fmt: skip
    ax.set_yticks(places, names)
    ax.set_ylim(base + 0.04, -0.04)
    ax.set_xlim(0, length)
    ax.set_xlabel(f"time since the start of the trip [{unit}]", color=INK, fontsize=9)
    quiet(ax, rows=True)
    captions = (
        (f"{window.title}, {_took(window)}", 0),
        ("bandwidth in use (dotted: all of it), mean", 1),
    )
    for text, at in captions:
        ax.annotate(
            text, (at, 1), xycoords="axes fraction", xytext=(36 * at, 4), fontsize=9 - at,
            textcoords="offset points", ha=("left", "right")[at], color=INK, parse_math=False,
        )  # fmt: skip


def _core_row(
    ax: "Axes", window: Window, times: float, known: dict[str, Style], names: Names
) -> None:
    """The bars of the core, those of one style at once, and the names that have room."""
    bars: dict[Style, list[Box]] = {}
    for each in window.core:
        assert each.record is not None
        style = WAIT if _waits(each) else known[each.record.label]
        left, width = (each.start_ps - window.start_ps) * times, each.length_ps * times
        bars.setdefault(style, []).append((left, left + width, 0, CORE_HEIGHT))
        room = each.length_ps / (window.end_ps - window.start_ps) * PLOT
        text = names.get(operation_of(each.record)) or short(each.record.name)
        _name_bar(ax, text, left + width / 2, room, style)
    for style, spans in bars.items():
        edge = INK if style.hatch else "white"
        look = fill(style) | {"edgecolor": edge, "linewidth": 0.25}
        boxes(ax, spans, look)


def _name_bar(ax: "Axes", text: str, middle: float, room: float, style: Style) -> None:
    """The text along the bar, or upright; nothing where there is no room (in points) for either.

    Of a line of code that has no room its number alone may have some.
    """
    needed = LETTER * len(text) + 4
    upright = room < needed
    if upright and (room < TEXT + 3 or needed > CORE_HEIGHT * INCHES * 72):
        line = re.search(r".(:\d+)$", text)
        return _name_bar(ax, line[1], middle, room, style) if line else None
    face = style.face if style.hatch else "none"
    ax.text(
        middle, CORE_HEIGHT / 2, text, fontsize=TEXT, color=style.text, ha="center", va="center",
        rotation=90 if upright else 0, parse_math=False,
        bbox={"facecolor": face, "edgecolor": "none", "pad": 0.8},
    )  # fmt: skip


def short(name: str) -> str:
    """What fits on a bar: without the loop, the kind of collective (the colour says it) and so on.

    >>> short("all-gather/bwd/layer/wk@fsdp again"), short("bwd/layer/wo_mlp/dw")
    ('wk', 'wo_mlp/dw')
    """
    bare = re.sub(r"@.*$| \(\+\d+\)$| again$", "", name)
    return re.sub(r"^(all|reduce|collective)-[a-z]+/|\b(bwd|wgt)/|\blayer/|/chunk\b", "", bare)


def _link_row(
    ax: "Axes", window: Window, link: str, base: float, times: float, known: dict[str, Style]
) -> float:
    """Draw the share of a link in use, by label, above `base`; returns its mean."""
    ends = (0, (window.end_ps - window.start_ps) * times)
    for height, line in ((0.0, "-"), (LINK_HEIGHT, ":")):
        ax.plot(ends, [base - height] * 2, color=MUTED, linewidth=0.6, ls=line)
    parts: dict[str, list[Box]] = {}
    for start, end, shares in _constant(window, link):
        left, right, low = (start - window.start_ps) * times, (end - window.start_ps) * times, base
        for label in (label for label in known if shares.get(label)):
            high = low - LINK_HEIGHT * shares[label]
            parts.setdefault(label, []).append((left, right, low, high))
            low = high
    for label, of in parts.items():
        boxes(ax, of, fill(known[label]) | {"linewidth": 0})
    return _mean(window, link)


def _constant(window: Window, link: str) -> list[tuple[int, int, dict[str, float]]]:
    """Start and end (ps) and share by label of a link, as long as the shares stay as they are."""
    parts: list[tuple[int, int, dict[str, float]]] = []
    for load in window.loads:
        shares, start = load.shares.get(link, {}), load.start_ps
        if parts and shares == parts[-1][2]:
            start = parts.pop()[0]
        parts.append((start, load.end_ps, shares))
    return parts


def _mean(window: Window, link: str) -> float:
    """The share of the link that is in use, on average over the window."""
    carried = (
        sum(load.shares.get(link, {}).values()) * (load.end_ps - load.start_ps)
        for load in window.loads
    )
    return sum(carried) / (window.end_ps - window.start_ps)
