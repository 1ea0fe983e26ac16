"""Availability: how often a slice can be placed, by its size and by the spares of its pod."""

from collections.abc import Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from tpusim.failures import Availability, PodQuestion
from tpusim.hardware import legal_shapes
from tpusim.report.figures import canvas
from tpusim.report.figures.palette import INK, MUTED, SMALL, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

HOSTS = (0.99, 0.995, 0.999)
"""Availabilities of hosts that the figure has beside the asked one."""

SAMPLES = 1024
"""States of a pod with fixed links that are drawn for each point."""

MOST_SPARES = 32

_COLOURS = ("#0b3c5d", "#328cc1", "#f2a541", "#b3261e")
_LINES: dict[str, Style] = {
    "switched": {"linestyle": "-"},
    "without routing": {"linestyle": "--", "linewidth": 1.0},
    "fixed links": {"linestyle": ":", "marker": ".", "markersize": 5},
}

Points: TypeAlias = Sequence[tuple[int, float]]


class AvailabilityCurve(NamedTuple):
    """Probabilities of one policy, at one availability of a host.

    points: chips of the slice, or spare cubes, and the probability.
    """

    policy: str
    host: float
    points: Points


class AvailabilityCurves(NamedTuple):
    """What the figure shows.

    by_size: one slice, by its chips.
    by_spares: the slices that were asked for, by the cubes beyond those that they need; empty where
        links are fixed.
    """

    title: str
    by_size: Sequence[AvailabilityCurve]
    by_spares: Sequence[AvailabilityCurve]


def availability_data(result: Availability) -> AvailabilityCurves:
    """Return the curves of an answer, at its availability of a host and at others."""
    asked, hosts = result.question, sorted({result.chances.host, *HOSTS})
    sizes = [curve for host in hosts for curve in _by_size(asked, host)]
    spares = [_by_spares(asked, host) for host in hosts] if asked.pool else []
    return AvailabilityCurves(f"Probability of a place: {result.title}", sizes, spares)


def _by_size(asked: PodQuestion, host: float) -> Iterator[AvailabilityCurve]:
    """Yield a curve for each policy of the pod."""
    if asked.pool:
        cubes = [asked.of_cubes(count) for count in range(1, asked.pool + 1)]
        for at, policy in enumerate(("switched", "without routing")):
            points = [(each.chips, each.of_switches(host)[at]) for each in cubes]
            yield AvailabilityCurve(policy, host, points)
    if asked.whole:
        shapes = _shapes(asked)
        slices = [PodQuestion(asked.chip, shape, samples=SAMPLES) for shape in shapes]
        fixed = [(each.chips, each.chances(host).contiguous or 0.0) for each in slices]
        yield AvailabilityCurve("fixed links", host, fixed)


def _shapes(asked: PodQuestion) -> Iterator[tuple[int, ...]]:
    """Yield the most cube-like slice of each power of two of chips, and the whole pod."""
    pod = asked.chip.pod_shape
    chips = asked.of_cubes(1).chips if asked.pool else asked.chip.host_chips
    while chips < prod(pod):
        fitting = [
            shape
            for shape in legal_shapes(asked.chip.slice_rules, chips)
            if all(a <= b for a, b in zip(sorted(shape), sorted(pod), strict=True))
        ]
        if fitting:
            yield min(fitting, key=lambda shape: (sum(shape), shape))
        chips *= 2
    yield pod


def _by_spares(asked: PodQuestion, host: float) -> AvailabilityCurve:
    """Return the probability of the asked slices by the spares of their pod."""
    points = [
        (spares, asked.with_pool(asked.cubes + spares).of_switches(host)[0])
        for spares in range(MOST_SPARES + 1)
    ]
    return AvailabilityCurve("switched", host, points)


def plot_availability(data: AvailabilityCurves) -> "Axes":
    """Draw the probability by size, and below it by spares; return the axes of the sizes."""
    rows = 1 + bool(data.by_spares)
    figure = canvas.new_figure(7.2, 1.0 + 2.7 * rows)
    grid = figure.add_gridspec(rows, 1)
    first = figure.add_subplot(grid[0])
    _draw_curves(first, data.by_size, "chips of a slice")
    sizes = sorted({chips for curve in data.by_size for chips, _ in curve.points})
    first.set_xscale("log", base=2)
    first.set_xlim(sizes[0], 1.05 * sizes[-1])
    first.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    first.legend(handles=[*_handles(data)], frameon=False, fontsize=SMALL, loc="lower left")
    canvas.draw_title(first, data.title, pad=8)
    if data.by_spares:
        lower = figure.add_subplot(grid[1])
        _draw_curves(lower, data.by_spares, "cubes beyond those needed")
        lower.set_xlim(0, MOST_SPARES)
    return first


def _draw_curves(ax: "Axes", curves: Sequence[AvailabilityCurve], unit: str) -> None:
    colours = _colours(curves)
    for curve in curves:
        look = {"color": colours[curve.host], **_LINES[curve.policy]}
        ax.plot(*zip(*curve.points, strict=True), **look)
    ax.set_ylim(0, 1.02)
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    ax.set_xlabel(unit, color=INK)
    ax.set_ylabel("placed", color=INK)
    canvas.simplify_axes(ax, grid="both")


def _colours(curves: Sequence[AvailabilityCurve]) -> dict[float, str]:
    """Return the colour of each availability of a host."""
    return dict(zip(sorted({curve.host for curve in curves}), _COLOURS, strict=False))


def _handles(data: AvailabilityCurves) -> "Iterator[Line2D]":
    """Yield the entries of the legend: a colour for each host, a line for each policy."""
    from matplotlib.lines import Line2D

    for host, colour in _colours(data.by_size).items():
        yield Line2D([], [], color=colour, label=f"hosts up {100 * host:.4g}%")
    for policy in dict.fromkeys(curve.policy for curve in data.by_size):
        yield Line2D([], [], color=MUTED, label=policy, **_LINES[policy])
