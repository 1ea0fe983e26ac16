"""The best plans of a sweep as bars: the step time of each, by kind of work."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tpusim.base.errors import TpusimError
from tpusim.base.shown_value import shown
from tpusim.report.figures import canvas
from tpusim.report.figures.palette import BEST_FRAME, INK, SMALL, styles
from tpusim.report.figures.sweep_table import check_fitting, checked_table, inputs_of
from tpusim.results import BUBBLE_LABEL, COMPUTE_LABELS, EXPOSED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame, Series

RANKING_BAR = 0.66
"""The height of a bar, in rows."""

PLANS_RANKED = 12
EXPOSED_KINDS = 2
"""Plans in the figure, and kinds of exposed communication that it separates: those that take most
time."""
OTHER_EXPOSED = "exposed other"


@dataclass(frozen=True, slots=True)
class RankedPlan:
    """A plan with its fastest placement, and the step time with its slowest that fits.

    breakdown_s: as in `Result`, without labels that take no time; sums to the step time.
    """

    name: str
    mfu: float
    step_time_s: float
    slowest_s: float
    breakdown_s: dict[str, float]


def ranking_data(table: "DataFrame", count: int = PLANS_RANKED) -> tuple[RankedPlan, ...]:
    """Return the fastest plans that fit in a sweep's table, each once with its best placement.

    Raise TpusimError for what is no table of a sweep, and for a count that is none.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise TpusimError(f"a ranking has count = {shown(count)}; write a whole number above 0")
    columns = map(str, getattr(table, "columns", ()))
    exposed = [label for label in columns if label.startswith(EXPOSED)]
    labels = (*COMPUTE_LABELS, BUBBLE_LABEL, *exposed)
    timed = ("step_time_s", "mfu")
    table = checked_table(table, ("placement", *timed, *exposed), (*timed, *labels))
    inputs = inputs_of(table)
    labels = tuple(label for label in labels if label in table)
    fitting = check_fitting(table, timed).sort_values("step_time_s", kind="stable")
    slowest = fitting.groupby(inputs, sort=False, dropna=False)["step_time_s"].max()
    fastest = fitting.drop_duplicates(inputs).head(count)
    return tuple(
        RankedPlan(
            name=_name(row, inputs, fastest),
            mfu=float(row["mfu"]),
            step_time_s=float(row["step_time_s"]),
            slowest_s=float(slow),
            breakdown_s={label: float(row[label]) for label in labels if row[label] > 0},
        )
        for (_, row), slow in zip(fastest.iterrows(), slowest, strict=False)
    )


def _name(row: "Series[Any]", inputs: list[str], shown: "DataFrame") -> str:
    """Return the sizes above 1, and the fields that differ among the plans shown."""
    cells = {key: row[key] for key in inputs}
    sizes = [f"{key} {_shown(size)}" for key, size in cells.items() if _is_size(size)]
    differing = [key for key in inputs if isinstance(row[key], str) and shown[key].nunique() > 1]
    return " · ".join([*sizes, *(str(row[key]) for key in differing)])


def _is_size(value: object) -> bool:
    """Return True for a number other than 1; a row of several sweeps may have NaN, and floats."""
    return isinstance(value, int | float | np.integer) and value not in (1, True) and value == value


def _shown(size: float) -> str:
    return str(int(size) if isinstance(size, float) and size.is_integer() else size)


def plot_ranking(
    data: "tuple[RankedPlan, ...] | DataFrame",
    ax: "Axes | None" = None,
    title: str = "The fastest plans that fit",
) -> "Axes":
    """Draw a bar for each plan, the fastest on top; a line reaches to its slowest placement.

    data: of `ranking_data`, or a sweep's table.
    """
    if not isinstance(data, tuple):
        data = ranking_data(data)
    if ax is None:
        ax = canvas.new_figure(10.5, 1.5 + 0.34 * max(1, len(data))).add_subplot()
    data = _merged(data)
    labels = list(dict.fromkeys(label for ranked in data for label in ranked.breakdown_s))
    labels.sort(key=lambda label: (label.startswith(EXPOSED), label == OTHER_EXPOSED, label))
    factor, unit = canvas.time_scale(data[0].step_time_s if data else 1.0)
    known = styles(label.removeprefix(EXPOSED) for label in labels)
    shades = {label: known[label.removeprefix(EXPOSED)] for label in labels}
    for place, ranked in enumerate(data):
        parts = [
            (ranked.breakdown_s[label] * factor, shades[label].arguments)
            for label in labels
            if label in ranked.breakdown_s
        ]
        left = canvas.draw_stack(ax, place, RANKING_BAR, parts)
        if place == 0:
            ax.barh(place, left, RANKING_BAR, fill=False, edgecolor=BEST_FRAME, linewidth=2.4)
        _label_bar(ax, place, ranked, factor, unit)
    _label_axes(ax, data, factor, unit)
    canvas.draw_legend(ax, {label: shades[label] for label in labels})
    canvas.draw_title(ax, title)
    return ax


def _merged(data: tuple[RankedPlan, ...]) -> tuple[RankedPlan, ...]:
    """Return the plans with the lesser kinds of exposed communication as one."""
    totals: dict[str, float] = {}
    for ranked in data:
        for label, seconds in ranked.breakdown_s.items():
            totals[label] = totals.get(label, 0.0) + seconds
    exposed = sorted(
        (label for label in totals if label.startswith(EXPOSED)), key=lambda label: totals[label]
    )
    kept = {*COMPUTE_LABELS, BUBBLE_LABEL, *exposed[-EXPOSED_KINDS:]}

    def merge(ranked: RankedPlan) -> RankedPlan:
        parts: dict[str, float] = {}
        for label, seconds in ranked.breakdown_s.items():
            name = label if label in kept else OTHER_EXPOSED
            parts[name] = parts.get(name, 0.0) + seconds
        return replace(ranked, breakdown_s=parts)

    return tuple(map(merge, data))


def _label_bar(ax: "Axes", place: int, ranked: RankedPlan, factor: float, unit: str) -> None:
    end = ranked.slowest_s * factor
    if ranked.slowest_s > ranked.step_time_s:
        ax.plot([ranked.step_time_s * factor, end], [place, place], color=INK, linewidth=1.4)
        ax.plot([end, end], [place - 0.16, place + 0.16], color=INK, linewidth=1.4)
    text = f"{ranked.step_time_s * factor:#.3g} {unit}   MFU {ranked.mfu:.1%}"
    style = {"fontsize": SMALL + 1, "weight": "normal" if place else "bold"}
    canvas.draw_note(ax, text, (end, place), (5, 0), va="center", **style)


def _label_axes(ax: "Axes", data: tuple[RankedPlan, ...], factor: float, unit: str) -> None:
    canvas.simplify_axes(ax, rows=True)
    ax.set_yticks(range(len(data)), [ranked.name for ranked in data], parse_math=False)
    if data:
        ax.get_yticklabels()[0].set_fontweight("bold")
        ax.set_xlim(0, 1.36 * factor * max(ranked.slowest_s for ranked in data))
    ax.invert_yaxis()
    ax.set_xlabel(f"step time [{unit}]; the thin line reaches to the slowest placement", color=INK)
