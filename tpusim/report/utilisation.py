"""How busy each resource is over the step, as a figure."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpusim.costs.links import DCN, FROM_HOST, TO_HOST
from tpusim.costs.tasks import HBM
from tpusim.report.canvas import SMALL, fill, head, legend, new_figure, quiet, style_of
from tpusim.report.palette import INK, Style
from tpusim.report.traffic import link_volumes
from tpusim.result import BUBBLE, COMPUTE_LABELS, EXPOSED, Result
from tpusim.summary import LEAST_SHOWN

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WORK = "core computes"
STALLED = "core communicates"
IDLE = "core waits for stages"


@dataclass(frozen=True, slots=True)
class Busy:
    """A resource, and the share of the step in which it is busy, by kind of work.

    A link is busy for what it carried at its full rate, the busiest of the stages of a pipeline.
    The core has two rows, at work and held by communication, and a third where there are stages to
    wait for; together they are the step, the mean of all stages.
    """

    resource: str
    shares: dict[str, float]

    @property
    def total(self) -> float:
        """The share of all kinds together."""
        return sum(self.shares.values())


def utilisation_data(result: Result) -> tuple[Busy, ...]:
    """The core, HBM, each ICI link both ways, then those of DCN and the host that are in use."""
    return (*_core(result), *_links(result))


def _core(result: Result) -> tuple[Busy, ...]:
    rows: dict[str, dict[str, float]] = {WORK: {}, STALLED: {}}
    for label, seconds in result.breakdown_s.items():
        name = WORK if label in COMPUTE_LABELS else IDLE if label == BUBBLE else STALLED
        rows.setdefault(name, {})[label.removeprefix(EXPOSED)] = seconds / result.step_time_s
    return tuple(Busy(name, shares) for name, shares in rows.items())


def _links(result: Result) -> list[Busy]:
    rates = {use.link: use.rate_nb_per_ps for use in result.timeline.links}
    rows = []
    for link, volumes in link_volumes(result).items():
        step = rates[link] * result.timeline.total_ps
        shares = {label: volume / step for label, volume in volumes.items() if volume}
        if shares or link.startswith("ici:") or link == HBM:
            rows.append(Busy(link, shares))
    return sorted(rows, key=lambda row: row.resource != HBM)


def resource_name(link: str) -> str:
    """A link as a person calls it."""
    known = {
        HBM: "HBM", TO_HOST: "to host (PCIe)", FROM_HOST: "from host (PCIe)",
        TO_HOST[:-1]: "host (PCIe)",
    }  # fmt: skip
    if link.startswith(DCN):
        return _across(link.removeprefix(DCN))
    return known.get(link) or link.replace("ici:", "ICI ").replace("-", "−")


def _across(link: str) -> str:
    """A link of DCN, after the name: of which slices, where not of all, and which way."""
    way = {"+": " out", "-": " in"}.get(link[-1:], "")
    slices = (link[:-1] if way else link).replace("..", "–").replace(":", " ")
    return f"DCN{slices}{way}"


def plot_utilisation(result: Result, ax: "Axes | None" = None) -> "Axes":
    """Draw `utilisation_data` on `ax`, or on a new figure; returns the axes.

    A link of DCN or the host is left out where its share would print as zero.
    """
    rows = [row for row in utilisation_data(result) if _shown(row)]
    ax = new_figure(7.2, 1.5 + 0.34 * len(rows)).add_subplot() if ax is None else ax
    known = style_of(result)
    for at, row in enumerate(rows):
        _draw(ax, at, row, known)
    ax.set_yticks(range(len(rows)), [resource_name(row.resource) for row in rows])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_xlim(0, 112)
    ax.set_xticks(range(0, 101, 20))
    several = len(result.programs) > 1
    which = "; core: mean stage, HBM and links: busiest" if several else ""
    ax.set_xlabel(f"busy share of the step [%]{which}", color=INK)
    quiet(ax, rows=True)
    work = next(row for row in rows if row.resource == WORK)
    head(ax, f"{result.title}: the core computes {work.total:.1%} of the step")
    drawn = {name for row in rows for name, share in row.shares.items() if share >= LEAST_SHOWN}
    legend(ax, {label: style for label, style in known.items() if label in drawn})
    return ax


def _shown(row: Busy) -> bool:
    """Whether a row is drawn: the core's work, HBM and ICI always, others where there is any."""
    if row.resource.startswith(DCN) or row.resource in (TO_HOST, FROM_HOST):
        return row.total >= LEAST_SHOWN
    return row.resource != STALLED or row.total > 0


def _draw(ax: "Axes", at: int, row: Busy, known: dict[str, Style]) -> None:
    left = 0.0
    for label, style in known.items():
        share = 100 * row.shares.get(label, 0)
        if share:
            ax.barh(at, share, 0.66, left, **fill(style))
        left += share
    ax.annotate(
        f"{row.total:.1%}", (left, at), xytext=(4, 0), textcoords="offset points", va="center",
        color=INK, fontsize=SMALL + 1,
    )  # fmt: skip
