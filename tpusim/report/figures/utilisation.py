"""The utilisation of each resource over the step."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import isclose
from typing import TYPE_CHECKING

from tpusim.costs import DCN, FROM_HOST, HBM, TO_HOST
from tpusim.report.figures import canvas
from tpusim.report.figures.palette import INK, SMALL, FillStyle
from tpusim.report.figures.registry import of_result, register_figure
from tpusim.report.link_traffic import busiest_uses, link_volumes
from tpusim.results import BUBBLE_LABEL, COMPUTE_LABELS, EXPOSED, LEAST_SHOWN, Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CORE_COMPUTES = "core computes"
CORE_COMMUNICATES = "core communicates"
CORE_WAITS = "core waits for stages"

NUMBER_ROOM = 12
"""The width beyond 100 %, in percent, for the number of a row that is busy all the time."""


@dataclass(frozen=True, slots=True)
class ResourceUse:
    """A resource, and the fraction of the step in which it is busy, by kind of work.

    A link is busy for as long as its volume takes at its full rate, in the busiest stage of a
    pipeline and on the busiest of devices that differ. The core has two rows, computing and held up
    by communication, and a third where there are stages to wait for; they sum to the step, the mean
    of all stages.
    """

    resource: str
    shares: dict[str, float]

    @property
    def total(self) -> float:
        """The fraction of all kinds together."""
        return sum(self.shares.values())


def utilisation_data(result: Result) -> tuple[ResourceUse, ...]:
    """Return the core, HBM, each ICI link in both directions, and DCN and host links in use."""
    return (*_core(result), *_links(result))


def _core(result: Result) -> tuple[ResourceUse, ...]:
    rows: dict[str, dict[str, float]] = {CORE_COMPUTES: {}, CORE_COMMUNICATES: {}}
    for label, seconds in result.breakdown_s.items():
        stalled = CORE_WAITS if label == BUBBLE_LABEL else CORE_COMMUNICATES
        row = rows.setdefault(CORE_COMPUTES if label in COMPUTE_LABELS else stalled, {})
        row[label.removeprefix(EXPOSED)] = seconds / result.step_time_s
    return tuple(ResourceUse(name, shares) for name, shares in rows.items())


def _links(result: Result) -> list[ResourceUse]:
    rates = {name: use.rate_nb_per_ps for name, use in busiest_uses(result.timeline).items()}
    rows = []
    for link, volumes in link_volumes(result).items():
        step = rates[link] * result.timeline.total_ps
        shares = {label: volume / step for label, volume in volumes.items() if volume}
        if shares or link.startswith("ici:") or link == HBM:
            rows.append(ResourceUse(link, shares))
    return sorted(rows, key=lambda row: row.resource != HBM)


def resource_name(link: str) -> str:
    """Return the name of a link in a figure."""
    if link.startswith(DCN):
        return _dcn_name(link.removeprefix(DCN))
    host = {TO_HOST: "to host", FROM_HOST: "from host", TO_HOST[:-1]: "host"}.get(link)
    if host:
        return f"{host} (PCIe)"
    return "HBM" if link == HBM else link.replace("ici:", "ICI ").replace("-", "−")


def _dcn_name(link: str) -> str:
    """Return the name of a DCN link: its slices, unless they are all, and its direction."""
    direction = {"+": " out", "-": " in"}.get(link[-1:], "")
    slices = (link[:-1] if direction else link).replace("..", "–").replace(":", " ")
    return f"DCN{slices}{direction}"


def both_ways(
    links: Iterable[str], alike: Callable[[str, str], bool]
) -> list[tuple[str, tuple[str, ...]]]:
    """Return the name of each row of links, and its links: both directions where they are alike.

    alike: True for two directions that one row can show.
    """
    known = list(links)
    rows: list[tuple[str, tuple[str, ...]]] = []
    for link in known:
        other = f"{link[:-1]}{'-' if link.endswith('+') else '+'}"
        if link[-1] not in "+-" or other not in known or not alike(link, other):
            rows.append((resource_name(link), (link,)))
        elif known.index(link) < known.index(other):
            rows.append((resource_name(link[:-1]), (link, other)))
    return rows


@of_result
def plot_utilisation(result: Result, ax: "Axes | None" = None) -> "Axes":
    """Draw the use of the core and of each link.

    A link of DCN or the host is left out where its share would print as zero, and both directions
    of a link are one row where they are alike.
    """
    uses = {row.resource: row for row in utilisation_data(result) if _is_shown(row)}
    named = both_ways(uses, lambda one, other: _alike(uses[one], uses[other]))
    rows = [uses[links[0]] for _, links in named]
    ax = canvas.new_figure(7.2, 1.5 + 0.34 * len(rows)).add_subplot() if ax is None else ax
    known = canvas.label_styles(result)
    for at, row in enumerate(rows):
        _draw_row(ax, at, row, known)
    ax.set_yticks(range(len(rows)), [name for name, _ in named])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_xlim(0, 100 + NUMBER_ROOM)
    ax.set_xticks(range(0, 101, 20))
    several = len(result.programs) > 1
    which = "; core: mean stage, HBM and links: busiest" if several else ""
    ax.set_xlabel(f"busy share of the step [%]{which}", color=INK)
    canvas.simplify_axes(ax, rows=True)
    work = next(row for row in rows if row.resource == CORE_COMPUTES)
    title = f"{result.title}: the core computes {work.total:.1%} of the step"
    canvas.draw_title(ax, title, letters=canvas.NARROW_LETTERS_PER_INCH)
    drawn = {name for row in rows for name, share in row.shares.items() if share >= LEAST_SHOWN}
    canvas.draw_legend(ax, {label: style for label, style in known.items() if label in drawn})
    return ax


def _alike(one: ResourceUse, other: ResourceUse) -> bool:
    """Return True if two directions are equally busy with the same, as far as numbers show."""
    labels = one.shares.keys() | other.shares.keys()
    return all(
        isclose(one.shares.get(label, 0), other.shares.get(label, 0), abs_tol=LEAST_SHOWN)
        for label in labels
    )


def _is_shown(row: ResourceUse) -> bool:
    """Return True for the core's work, HBM and ICI, and for other rows that are above zero."""
    if row.resource.startswith(DCN) or row.resource in (TO_HOST, FROM_HOST):
        return row.total >= LEAST_SHOWN
    return row.resource != CORE_COMMUNICATES or row.total > 0


def _draw_row(ax: "Axes", at: int, row: ResourceUse, known: dict[str, FillStyle]) -> None:
    parts = [(100 * row.shares.get(label, 0), style.arguments) for label, style in known.items()]
    left = canvas.draw_stack(ax, at, 0.66, (part for part in parts if part[0]))
    canvas.draw_note(ax, f"{row.total:.1%}", (left, at), (4, 0), va="center", fontsize=SMALL + 1)


register_figure("utilisation", utilisation_data, plot_utilisation)
