"""The best plans of a sweep as bars: how long each step takes, and on what."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tpusim.report.canvas import SMALL, fill, head, legend, new_figure, quiet, scale
from tpusim.report.palette import BEST, INK, styles
from tpusim.result import COMPUTE_LABELS, EXPOSED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame, Series

BAR = 0.66
COUNT = 12
KINDS = 2
"""Kinds of exposed communication that the bars tell apart: those that take the most time."""
OTHER = "exposed other"


@dataclass(frozen=True, slots=True)
class Ranked:
    """A plan with its fastest placement, and the step time with its slowest that fits.

    breakdown_s: as in `Result`, labels that take no time left out; sums to the step time.
    """

    name: str
    mfu: float
    step_time_s: float
    slowest_s: float
    breakdown_s: dict[str, float]


def ranking_data(table: "DataFrame", count: int = COUNT) -> tuple[Ranked, ...]:
    """The fastest plans that fit in a sweep's table, each once with its best placement."""
    inputs = list(table.columns[: table.columns.get_loc("placement")])
    labels = [label for label in table.columns if label.startswith(EXPOSED)]
    labels = [*COMPUTE_LABELS, *labels]
    fitting = table[table["fits"]].sort_values("step_time_s", kind="stable")
    slowest = fitting.groupby(inputs, sort=False)["step_time_s"].max()
    fastest = fitting.drop_duplicates(inputs).head(count)
    return tuple(
        Ranked(
            name=_name(row, inputs, fastest), mfu=float(row["mfu"]),
            step_time_s=float(row["step_time_s"]), slowest_s=float(slow),
            breakdown_s={label: float(row[label]) for label in labels if row[label] > 0},
        )
        for (_, row), slow in zip(fastest.iterrows(), slowest, strict=False)
    )  # fmt: skip


def _name(row: "Series[Any]", inputs: list[str], shown: "DataFrame") -> str:
    """Sizes above 1, and the fields that differ among what is shown."""
    sizes = [f"{key} {row[key]}" for key in inputs if isinstance(row[key], int) and row[key] != 1]
    texts = [str(row[key]) for key in inputs
             if isinstance(row[key], str) and shown[key].nunique() > 1]  # fmt: skip
    return " · ".join(sizes + texts)


def plot_ranking(
    data: tuple[Ranked, ...], ax: "Axes | None" = None, title: str = "The fastest plans that fit"
) -> "Axes":
    """Draw a bar a plan, the fastest on top; a thin line reaches to its slowest placement."""
    if ax is None:
        ax = new_figure(10.5, 1.5 + 0.34 * max(1, len(data))).add_subplot()
    data = _merged(data)
    labels = list(dict.fromkeys(label for ranked in data for label in ranked.breakdown_s))
    labels.sort(key=lambda label: (label.startswith(EXPOSED), label == OTHER, label))
    factor, unit = scale(data[0].step_time_s if data else 1.0)
    shades = styles(label.removeprefix(EXPOSED) for label in labels)
    for place, ranked in enumerate(data):
        left = 0.0
        for label in (each for each in labels if each in ranked.breakdown_s):
            seconds = ranked.breakdown_s[label] * factor
            ax.barh(place, seconds, BAR, left, **fill(shades[label.removeprefix(EXPOSED)]))
            left += seconds
        if place == 0:
            ax.barh(place, left, BAR, fill=False, edgecolor=BEST, linewidth=2.4)
        _label(ax, place, ranked, factor, unit)
    _rows(ax, data, factor, unit)
    legend(ax, {label: shades[label.removeprefix(EXPOSED)] for label in labels})
    head(ax, title)
    return ax


def _merged(data: tuple[Ranked, ...]) -> tuple[Ranked, ...]:
    """The same with the lesser kinds of exposed communication as one."""
    totals: dict[str, float] = {}
    for ranked in data:
        for label, seconds in ranked.breakdown_s.items():
            totals[label] = totals.get(label, 0.0) + seconds
    exposed = sorted(
        (label for label in totals if label.startswith(EXPOSED)), key=lambda label: totals[label]
    )
    kept = {*COMPUTE_LABELS, *exposed[-KINDS:]}

    def merge(ranked: Ranked) -> Ranked:
        parts: dict[str, float] = {}
        for label, seconds in ranked.breakdown_s.items():
            name = label if label in kept else OTHER
            parts[name] = parts.get(name, 0.0) + seconds
        return replace(ranked, breakdown_s=parts)

    return tuple(map(merge, data))


def _label(ax: "Axes", place: int, ranked: Ranked, factor: float, unit: str) -> None:
    end = ranked.slowest_s * factor
    if ranked.slowest_s > ranked.step_time_s:
        ax.plot([ranked.step_time_s * factor, end], [place, place], color=INK, linewidth=1.4)
        ax.plot([end, end], [place - 0.16, place + 0.16], color=INK, linewidth=1.4)
    ax.annotate(
        f"{ranked.step_time_s * factor:#.3g} {unit}   MFU {ranked.mfu:.1%}", (end, place),
        xytext=(5, 0), textcoords="offset points", va="center", color=INK, fontsize=SMALL + 1,
        weight="normal" if place else "bold",
    )  # fmt: skip


def _rows(ax: "Axes", data: tuple[Ranked, ...], factor: float, unit: str) -> None:
    quiet(ax, rows=True)
    ax.set_yticks(range(len(data)), [ranked.name for ranked in data], parse_math=False)
    if data:
        ax.get_yticklabels()[0].set_fontweight("bold")
        ax.set_xlim(0, 1.36 * factor * max(ranked.slowest_s for ranked in data))
    ax.invert_yaxis()
    ax.set_xlabel(f"step time [{unit}]; the thin line reaches to the slowest placement", color=INK)
